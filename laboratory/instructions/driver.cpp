// Calls CPU kernels (cases.h), for callgrind to count the instructions of each call apart. Without PyTorch.
//
//   driver EDGES [CASE ...]    the cases named, or all of them; the table and the name of each on standard output
#include <valgrind/callgrind.h>

#include <cstdio>
#include <set>

#include "cases.h"

namespace halfgnn {
namespace {

// ---- counting ----------------------------------------------------------------------------------------------------

[[gnu::noinline]] void count(const char* table, const std::string& name, const Call& call) {
  CALLGRIND_ZERO_STATS;
  CALLGRIND_TOGGLE_COLLECT;
  call();
  CALLGRIND_TOGGLE_COLLECT;
  CALLGRIND_DUMP_STATS;
  std::printf("%s\t%s\n", table, name.c_str());
}

struct Variant {
  const char* name;
  DType type;
  int64_t heads;
  bool is_int64;
};
constexpr Variant kVariants[] = {
    {"fp16 1 head", DType::kHalf, 1, false},          {"fp16 4 heads", DType::kHalf, 4, false},
    {"bf16 1 head", DType::kBFloat16, 1, false},      {"bf16 4 heads", DType::kBFloat16, 4, false},
    {"fp32 1 head", DType::kFloat, 1, false},         {"fp32 4 heads", DType::kFloat, 4, false},
    {"bf16 1 head int64", DType::kBFloat16, 1, true},
};

int run(int64_t num_edges, const std::set<std::string>& wanted) {
  Edges edges;
  Random random;
  for (int64_t e = 0; e < num_edges; ++e) {
    edges.src.push_back(random.skewed(kNodes));
    edges.dst.push_back(random.skewed(kNodes));
  }
  Memory memory_of_graphs;
  const Graph narrow(memory_of_graphs, edges, false), wide(memory_of_graphs, edges, true);
  for (const KernelTable* kernels : supported_tables()) {
    for (const Operator& op : kOperators) {
      for (const Variant& variant : kVariants) {
        const std::string name = std::string(op.name) + " " + variant.name;
        if ((variant.heads > 1 && !op.has_heads) || (!wanted.empty() && !wanted.count(name))) continue;
        Memory memory;
        const Size shape{variant.type, variant.heads, 128 / variant.heads};
        if (!op.takes(*kernels, shape)) continue;
        count(kernels->name, name, op.prepare({memory, variant.is_int64 ? wide : narrow, *kernels, shape}));
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace halfgnn

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  return halfgnn::run(std::atoll(argv[1]), {argv + 2, argv + argc});
}
