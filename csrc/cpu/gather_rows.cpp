// gather_rows on the CPU: rows copied by threads of PyTorch, or by as many as the caller wants. A table mapped from a
// file wants more threads than there are cores, since they wait for its pages and do not compute.

#include "gather_rows.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "../torch/errors.h"
#include "../torch/threads.h"
#include "kernels/choose.h"

namespace halfgnn::cpu {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kAheadRows = 8, kAheadBytes = 256;  // prefetched, and how much of each: more comes by itself
constexpr int64_t kSerialIds = 1 << 15, kSerialBytes = 1 << 15;  // work that is not worth a thread of PyTorch
constexpr int64_t kPieceBytes = 1 << 18;  // of a thread of the caller's, before it takes the next

// ---- ids ---------------------------------------------------------------------------------------

template <class Id>
bool is_valid(const GatherRowsArgs& args, int64_t i) {
  const auto id = static_cast<int64_t>(static_cast<const Id*>(args.ids)[i * args.ids_stride]);
  return id >= 0 && id < args.table_rows;
}

template <class Id>
void check_range(const GatherRowsArgs& args) {
  std::atomic<int64_t> first{args.num_ids};
  parallel_for(0, args.num_ids, kSerialIds, [&](int64_t begin, int64_t end) {
    bool all_valid = true;
    for (int64_t i = begin; i < end; ++i) all_valid &= is_valid<Id>(args, i);
    if (all_valid) return;
    while (is_valid<Id>(args, begin)) ++begin;
    for (int64_t known = first; begin < known && !first.compare_exchange_weak(known, begin);) continue;
  });
  const int64_t i = first;
  CHECK_INDEX(i == args.num_ids, "ids[", i, "] is ", static_cast<const Id*>(args.ids)[i * args.ids_stride],
              "; expected ids in [0, ", args.table_rows, "), the rows of table");
}

// ---- rows --------------------------------------------------------------------------------------

void prefetch(const char* row, int64_t bytes) {
  for (int64_t byte = 0; byte < bytes; byte += kLineBytes) __builtin_prefetch(row + byte);
}

// Rows begin ... end - 1 of out. kRowBytes: what they have, or 0 where that is known at run time only.
template <class Id, int64_t kRowBytes>
void copy_rows(const GatherRowsArgs& args, int64_t begin, int64_t end) noexcept {
  const int64_t bytes = kRowBytes != 0 ? kRowBytes : args.row_bytes;
  const auto* ids = static_cast<const Id*>(args.ids);
  const auto* table = static_cast<const char*>(args.table);
  auto* out = static_cast<char*>(args.out) + begin * bytes;
  const auto row = [&](int64_t i) {
    return table + static_cast<int64_t>(ids[i * args.ids_stride]) * args.table_stride;
  };
  for (int64_t i = begin; i < end; ++i, out += bytes) {
    if (i + kAheadRows < end) prefetch(row(i + kAheadRows), std::min(bytes, kAheadBytes));
    std::memcpy(out, row(i), static_cast<size_t>(bytes));
  }
}

void dequantize_rows(const GatherRowsArgs& args, int64_t begin, int64_t end) noexcept {
  kernels().gather.dequantize(args, begin, end);
}

using CopyRows = void (*)(const GatherRowsArgs&, int64_t, int64_t) noexcept;

// Short rows, as labels are, are copied by an instruction or two instead of a call.
template <class Id>
CopyRows copy_of(const GatherRowsArgs& args) {
  if (args.code != Code::kNone) return dequantize_rows;
  switch (args.row_bytes) {
    case 1: return copy_rows<Id, 1>;
    case 2: return copy_rows<Id, 2>;
    case 4: return copy_rows<Id, 4>;
    case 8: return copy_rows<Id, 8>;
    case 16: return copy_rows<Id, 16>;
    default: return copy_rows<Id, 0>;
  }
}

// Of a row of out.
int64_t out_bytes(const GatherRowsArgs& args) {
  return args.code == Code::kNone ? args.row_bytes : args.row_bytes * size_of(args.out_type);
}

// ---- threads -----------------------------------------------------------------------------------

class Threads {
 public:
  // Runs `work` on `count` threads, the caller's among them, or on as many as the system grants.
  template <class Work>
  Threads(int64_t count, const Work& work) {
    threads_.reserve(static_cast<size_t>(count));
    try {
      for (int64_t t = 1; t < count; ++t) threads_.emplace_back(work);
    } catch (const std::exception&) {  // the system has no more to give
    }
    work();
  }
  ~Threads() {
    for (std::thread& thread : threads_) thread.join();
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  std::vector<std::thread> threads_;
};

// Pieces are taken as they come, so that a thread that waits for a disk holds up none but its own.
void copy_by_threads(const GatherRowsArgs& args, CopyRows copy) {
  const int64_t most = std::max<int64_t>(kPieceBytes / out_bytes(args), 1);
  const int64_t rows = std::min(std::max<int64_t>(args.num_ids / (8 * args.num_threads), 1), most);
  const int64_t pieces = (args.num_ids + rows - 1) / rows;
  std::atomic<int64_t> next{0};
  const Threads threads(std::min(args.num_threads, pieces), [&]() noexcept {
    for (int64_t piece = next++; piece < pieces; piece = next++) {
      copy(args, piece * rows, std::min((piece + 1) * rows, args.num_ids));
    }
  });
}

// Scales of columns as the kernel reads them.
class PaddedScales {
 public:
  explicit PaddedScales(const GatherRowsArgs& args) : args_(args) {
    if (args.code == Code::kNone || args.scales.per != ScalePer::kColumn) return;
    const auto padded = [&](const float* values, std::vector<float>& to) {
      to.resize(static_cast<size_t>(args.row_bytes + kMostLanes));
      if (values != nullptr) std::copy_n(values, args.row_bytes, to.begin());
      return to.data();
    };
    args_.scales.scale = padded(args.scales.scale, scale_);
    args_.scales.zero_point = padded(args.scales.zero_point, zero_point_);
  }
  const GatherRowsArgs& args() const { return args_; }

 private:
  GatherRowsArgs args_;
  std::vector<float> scale_, zero_point_;
};

template <class Id>
void gather(const GatherRowsArgs& given) {
  check_range<Id>(given);
  const PaddedScales scales(given);
  const GatherRowsArgs& args = scales.args();
  if (args.row_bytes == 0 || args.num_ids == 0) return;
  const CopyRows copy = copy_of<Id>(args);
  if (args.num_threads > 0) return copy_by_threads(args, copy);
  parallel_for(0, args.num_ids, std::max<int64_t>(kSerialBytes / out_bytes(args), 1),
               [&](int64_t begin, int64_t end) { copy(args, begin, end); });
}

}  // namespace

void gather_rows(const GatherRowsArgs& args) { args.is_int64 ? gather<int64_t>(args) : gather<int32_t>(args); }

}  // namespace halfgnn::cpu
