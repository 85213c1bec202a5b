// Runs the cases of cases.h at many shapes on every table that the processor supports, and on the test build `wide`,
// and compares what they write with the baseline's. Bits may differ, even where sums have one order: which products and
// sums become one instruction is the compiler's choice.
//
//   compare EDGES [spoil]    the calls of each table, and how many differ, on standard output; those on standard error.
//                            spoil: an element of what each call wrote is changed, and every call must differ; shapes
//                            have no part in what is noticed, so it runs at some of them
//
// Every buffer ends where a page without access begins: nothing may be read behind it.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>

#include "cases.h"

namespace halfgnn {
namespace wide {
extern const KernelTable kKernels;
}
namespace {

class GuardedMemory : public Memory {
 public:
  ~GuardedMemory() override {
    for (const Mapping& mapping : mappings_) munmap(mapping.data, mapping.size);
  }
  void* bytes(int64_t n) override {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), size = static_cast<size_t>(n);
    const size_t whole = (size + page - 1) / page * page;
    void* data = mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    mappings_.push_back({data, whole + page});
    if (mprotect(static_cast<char*>(data) + whole, page, PROT_NONE) != 0) throw std::bad_alloc();
    return static_cast<char*>(data) + whole - size;
  }

 private:
  struct Mapping {
    void* data;
    size_t size;
  };
  std::vector<Mapping> mappings_;
};

// ---- what was written

double element(const Result& result, int64_t i) {
  if (result.type == DType::kDouble) return static_cast<const double*>(result.data)[i];
  if (result.type == DType::kFloat) return static_cast<const float*>(result.data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(result.data)[i];
  if (result.type == DType::kBFloat16) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * mantissa * 0x1p-24;
  const int normal = (exponent + 112) << 23 | mantissa << 13;  // in fp32
  float value;
  std::memcpy(&value, &normal, sizeof(value));
  return sign * value;
}
// With what rounding lost, of which the other table may have stored the other neighbour.
double precise_element(const std::vector<Result>& results, size_t index, int64_t i) {
  const double value = element(results[index], i);
  return results[index].kind == Result::kResidual ? value + element(results[index - 1], i) : value;
}

// The unit of rounding of a type, relative to the value.
double unit(DType type) {
  return type == DType::kHalf ? 0x1p-10 : type == DType::kBFloat16 ? 0x1p-7 : type == DType::kFloat ? 0x1p-23 : 0x1p-52;
}
// Results may round to neighbours, and sums in another order differ by little of the largest value.
bool is_close(const std::vector<Result>& a, const std::vector<Result>& b, size_t index) {
  const Result& result = a[index];
  const bool is_residual = result.kind == Result::kResidual;
  double largest = 0;
  for (int64_t i = 0; i < result.n; ++i) largest = std::max(largest, std::fabs(precise_element(a, index, i)));
  const double relative = is_residual ? unit(result.type) * unit(result.type) : unit(result.type);
  for (int64_t i = 0; i < result.n; ++i) {
    const double x = precise_element(a, index, i), y = precise_element(b, index, i);
    if (!(std::fabs(x - y) <= relative * std::fabs(x) + 2e-5 * largest)) return false;
  }
  return true;
}
bool is_equal(const Result& a, const Result& b) {
  return std::memcmp(a.data, b.data, static_cast<size_t>(a.n * size_of(a.type))) == 0;
}
bool agree(const std::vector<Result>& a, const std::vector<Result>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].kind == Result::kIds ? !is_equal(a[i], b[i]) : !is_close(a, b, i)) return false;
  return a.size() == b.size();
}

// Changes the largest element of a result, unless all are 0: the last bit of its exponent.
void spoil(const std::vector<Result>& results) {
  for (const Result& result : results) {
    if (result.kind != Result::kValues) continue;
    int64_t largest = 0;
    for (int64_t i = 1; i < result.n; ++i)
      if (std::fabs(element(result, i)) > std::fabs(element(result, largest))) largest = i;
    if (element(result, largest) == 0) continue;
    const int bit = result.type == DType::kHalf ? 10 : result.type == DType::kBFloat16 ? 7 : 23;
    char* data = const_cast<char*>(static_cast<const char*>(result.data)) + largest * size_of(result.type);
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ 1 << bit % 8);
    return;
  }
}

// ---- conversions

// The value of `type` that is nearest to x, of two such values the one with an even mantissa.
double nearest(DType type, double x) {
  const int digits = type == DType::kHalf ? 10 : 7, least = type == DType::kHalf ? -14 : -126;
  if (!std::isfinite(x)) return x;
  int exponent;
  std::frexp(x, &exponent);
  const double step = std::ldexp(1, std::max(exponent - 1, least) - digits), rounded = std::nearbyint(x / step) * step;
  const double infinite = type == DType::kHalf ? 0x1p16 : 0x1p128;
  return std::fabs(rounded) >= infinite ? std::copysign(INFINITY, x) : rounded;
}
bool is_same(double x, double y) {
  return std::isnan(x) ? std::isnan(y) : x == y && std::signbit(x) == std::signbit(y);
}

// All values of a half type to fp32.
bool widens(const KernelTable& kernels, DType type) {
  constexpr int64_t kValues = 1 << 16;
  GuardedMemory memory;
  uint16_t* values = static_cast<uint16_t*>(memory.empty(type, kValues));
  for (int64_t i = 0; i < kValues; ++i) values[i] = static_cast<uint16_t>(i);
  float* wide = static_cast<float*>(memory.empty(DType::kFloat, kValues));
  kernels.gat.widen(type, values, wide, 0, kValues);
  for (int64_t i = 0; i < kValues; ++i)
    if (!is_same(element(memory.results[0], i), wide[i])) return false;
  return true;
}
// fp32 to a half type: every sign, exponent and upper mantissa, with lower bits about the ties.
bool rounds(const KernelTable& kernels, DType type) {
  constexpr uint32_t kLower[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x2000, 0x2fff, 0x3000, 0x3001,
                                 0x4000, 0x6000, 0x7fff, 0x8000, 0x8001, 0xa000, 0xc000, 0xffff};
  constexpr int64_t kUpper = 1 << 16;
  GuardedMemory memory;
  for (const uint32_t lower : kLower) {
    uint32_t* bits = static_cast<uint32_t*>(memory.empty(DType::kFloat, kUpper));
    for (int64_t i = 0; i < kUpper; ++i) bits[i] = static_cast<uint32_t>(i) << 16 | lower;
    bits[kUpper / 2] = 0;  // -0, which a sum is not
    kernels.pair.add_parts(bits, 1, kUpper, type, memory.empty(type, kUpper));
    const Result &rounded = memory.results.back(), &values = memory.results[memory.results.size() - 2];
    for (int64_t i = 0; i < kUpper; ++i)
      if (!is_same(nearest(type, element(values, i)), element(rounded, i))) return false;
  }
  return true;
}

// ---- the calls

constexpr int64_t kHeadsAndDims[][2] = {{1, 1},  {3, 2},  {1, 5},  {4, 7},   {1, 8},   {2, 9},   {5, 12}, {1, 15},
                                        {3, 16}, {1, 17}, {8, 23}, {2, 31},  {1, 32},  {3, 33},  {1, 40}, {4, 48},
                                        {2, 63}, {1, 65}, {1, 64}, {3, 100}, {1, 127}, {1, 129}, {1, 300}};
constexpr size_t kSpoiledShapes = 4;  // every so many: 1 x 1, 1 x 8, 3 x 16, 1 x 32, 2 x 63, 1 x 127
struct TypeName {
  DType type;
  const char* name;
};
constexpr TypeName kTypes[] = {{DType::kHalf, "fp16"}, {DType::kBFloat16, "bf16"}, {DType::kFloat, "fp32"}};

struct Tally {
  int calls = 0, different = 0;
};

std::vector<const KernelTable*> tables() {
  std::vector<const KernelTable*> found = supported_tables();
#if defined(__x86_64__)
  if (found.size() == 1) return found;  // no AVX2
#endif
  found.insert(found.begin(), &wide::kKernels);
  return found;
}

class Comparison {
 public:
  // The second graph has its hubs last: the last edges of all are of a row of many. Its edges are sorted by
  // destination, so that in-edges need no edge ids.
  Comparison(int64_t num_edges, bool spoils) : spoils_(spoils) {
    Edges edges, hubs_last;
    Random random;
    for (int64_t e = 0; e < num_edges; ++e) {
      edges.src.push_back(random.skewed(kNodes));
      edges.dst.push_back(random.skewed(kNodes));
      hubs_last.src.push_back(kNodes - 1 - edges.src.back());
      hubs_last.dst.push_back(kNodes - 1 - edges.dst.back());
    }
    std::sort(hubs_last.dst.begin(), hubs_last.dst.end());
    graphs_.emplace_back(memory_of_graphs_, edges, false);
    graphs_.emplace_back(memory_of_graphs_, hubs_last, true);
    graphs_.back().csc.edge_ids = nullptr;
  }
  void convert(const TypeName& type) {
    for (const KernelTable* table : tables()) {
      count(table, std::string("widening of ") + type.name, widens(*table, type.type));
      count(table, std::string("rounding to ") + type.name, rounds(*table, type.type));
    }
  }
  void compare(const Operator& op, const TypeName& type, int64_t heads, int64_t dim) {
    const Size shape{type.type, heads, dim};
    const std::vector<const KernelTable*> all = tables();
    if (!op.takes(*all.back(), shape)) return;
    for (const Graph& graph : graphs_) {
      const std::string name = std::string(op.name) + " " + type.name + " " + std::to_string(heads) + " x " +
                               std::to_string(dim) + (graph.csc.is_int64 ? " int64, hubs last" : "");
      std::vector<GuardedMemory> memory(all.size());
      for (size_t i = 0; i < all.size(); ++i) op.prepare({memory[i], graph, *all[i], shape})();
      for (size_t i = 0; i + 1 < all.size(); ++i) {
        if (spoils_) spoil(memory[i].results);
        count(all[i], name, agree(memory.back().results, memory[i].results));
      }
    }
  }
  // Whether no call differs.
  bool report() const {
    bool good = true;
    for (const auto& [table, tally] : tallies_) {
      std::printf("%s\t%d\t%d\n", table.c_str(), tally.calls, tally.different);
      good = good && tally.different == 0;
    }
    return good;
  }

 private:
  void count(const KernelTable* table, const std::string& name, bool is_good) {
    Tally& tally = tallies_[table->name];
    ++tally.calls;
    if (is_good) return;
    ++tally.different;
    std::fprintf(stderr, "%s: %s\n", table->name, name.c_str());
  }
  bool spoils_;
  GuardedMemory memory_of_graphs_;
  std::vector<Graph> graphs_;
  std::map<std::string, Tally> tallies_;
};

int run(int64_t num_edges, bool spoils) {
  Comparison comparison(num_edges, spoils);
  for (const TypeName& type : kTypes)
    if (type.type != DType::kFloat && !spoils) comparison.convert(type);
  const size_t step = spoils ? kSpoiledShapes : 1;
  for (const Operator& op : kOperators)
    for (const TypeName& type : kTypes)
      for (size_t i = 0; i < std::size(kHeadsAndDims); i += step)
        comparison.compare(op, type, kHeadsAndDims[i][0], kHeadsAndDims[i][1]);
  return comparison.report() ? 0 : 1;
}

}  // namespace
}  // namespace halfgnn

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  return halfgnn::run(std::atoll(argv[1]), argc == 3 && !std::strcmp(argv[2], "spoil"));
}
