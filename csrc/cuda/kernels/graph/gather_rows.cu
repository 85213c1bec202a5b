// The kernel behind gather_rows.h. The lanes of a warp copy consecutive vectors of a row, or of several short rows, and
// have loads of several accesses in flight; the ids of the next ones are loaded meanwhile.
//
// A table may lie in the CPU's memory, where the GPU reads it over PCIe ("zero copy"; Min et al., "Large Graph
// Convolutional Network Training with GPU-Oriented Data Communication Architecture", VLDB 2021). What a warp reads at
// once becomes a request for each line of 128 bytes that it touches, so a line that two accesses share is asked for
// twice. Accesses of long rows therefore begin at the boundary of a line: the first of a row that begins within one
// leaves its first lanes idle.

#include "gather_rows.h"

#include <cstring>

#include "../core/ids.cuh"
#include "../plan/units.h"

namespace halfgnn::cuda {
namespace {

constexpr int kMaxVectorBytes = 16;
constexpr int kWarps = 4;
constexpr int kAccesses = 4;  // loads that a lane has in flight: a batch

// What accesses of long rows begin at a multiple of: a line, or what a warp reads of one at once.
template <typename Word>
constexpr int kAccessAlignment = sizeof(Word) < 4 ? kWarpSize * static_cast<int>(sizeof(Word)) : 128;

struct KernelArgs {
  Ids ids;
  int64_t ids_stride;
  int64_t num_ids;
  const char* table;
  int64_t table_rows;
  int64_t table_stride;
  char* out;
  int32_t row_vectors;
  int32_t row_accesses;  // that cover a row, wherever it begins within a line; 1: an access covers one row or more
  int32_t log2_lanes;    // of the group that covers a row
  int32_t batches;       // of a warp
};

// An access of a row, for one group of lanes.
struct Place {
  int32_t row;  // from the warp's first on
  int32_t access;

  __device__ void advance(const KernelArgs& args) {
    const bool is_last = ++access == args.row_accesses;
    access = is_last ? 0 : access;
    row += is_last ? kWarpSize >> args.log2_lanes : 0;
  }
};

// What one warp copies.
struct Part {
  int64_t first_row;
  int32_t last_row;  // of all, from the first on; fewer if the warp has no use for as many
  int32_t lane;      // within its group

  // The id of a row, or of the last: loads without conditions stay in flight together.
  __device__ int64_t id(const KernelArgs& args, int32_t row) const {
    return args.ids.offset((first_row + (row < last_row ? row : last_row)) * args.ids_stride);
  }
};

template <typename Word>
__device__ Word all_ones() {
  Word word;
  std::memset(&word, 0xff, sizeof(Word));
  return word;
}

// The vector that a lane copies, if it has one.
template <typename Word>
struct Copy {
  Word word;
  uint32_t target;  // vectors from the first of the warp's first row on
  bool is_wanted;

  __device__ void load(const KernelArgs& args, const Part& part, const Place& place, int64_t id) {
    const bool is_valid = static_cast<uint64_t>(id) < static_cast<uint64_t>(args.table_rows);
    const char* row = args.table + (is_valid ? id : 0) * args.table_stride;
    const uint32_t past = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row)) % kAccessAlignment<Word>;
    const int32_t idle = args.row_accesses > 1 ? static_cast<int32_t>(past / sizeof(Word)) : 0;
    const int32_t vector = place.access * kWarpSize + part.lane - idle;
    is_wanted = place.row <= part.last_row && vector >= 0 && vector < args.row_vectors;
    target = static_cast<uint32_t>(place.row) * static_cast<uint32_t>(args.row_vectors) + static_cast<uint32_t>(vector);
    // Rows are wanted once, and there may be more of them than the caches hold.
    word = is_wanted && is_valid ? __ldcs(reinterpret_cast<const Word*>(row) + vector) : all_ones<Word>();
  }
  __device__ void store(Word* out) const {
    if (is_wanted) __stcs(out + target, word);
  }
};

template <typename Word>
__global__ void __launch_bounds__(kWarps* kWarpSize, 8) gather_rows_kernel(const KernelArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t first = warp * args.batches * kAccesses;
  const int64_t first_group = first / args.row_accesses;
  const int64_t first_row = first_group * (kWarpSize >> args.log2_lanes);
  const int64_t rest = args.num_ids - 1 - first_row;
  if (rest < 0) return;  // whole warps, past the last row
  constexpr int32_t most = kMaxCopyBatches * kAccesses * kWarpSize;
  const Part part{first_row, rest < most ? static_cast<int32_t>(rest) : most, lane & ((1 << args.log2_lanes) - 1)};
  Word* out = reinterpret_cast<Word*>(args.out) + first_row * args.row_vectors;
  Place place{lane >> args.log2_lanes, static_cast<int32_t>(first - first_group * args.row_accesses)};
  Place ahead = place;
  int64_t ids[kAccesses];
#pragma unroll
  for (int u = 0; u < kAccesses; ++u) {
    ids[u] = part.id(args, ahead.row);
    ahead.advance(args);
  }
  for (int batch = 0; batch < args.batches; ++batch) {
    Copy<Word> copies[kAccesses];
#pragma unroll
    for (int u = 0; u < kAccesses; ++u) {
      copies[u].load(args, part, place, ids[u]);
      place.advance(args);
    }
#pragma unroll
    for (int u = 0; u < kAccesses; ++u) {
      ids[u] = part.id(args, ahead.row);
      ahead.advance(args);
    }
#pragma unroll
    for (int u = 0; u < kAccesses; ++u) copies[u].store(out);
  }
}

// The largest power of two that divides all of the bits' numbers, at most `most`, which is one.
int64_t common_alignment(uint64_t bits, int64_t most) {
  const uint64_t all = bits | static_cast<uint64_t>(most);
  return static_cast<int64_t>(all & (~all + 1));
}

// How far past a multiple of `alignment` a row of the table begins, at most.
int64_t most_past(int64_t alignment, const GatherRowsArgs& args) {
  const int64_t step = common_alignment(static_cast<uint64_t>(args.table_rows > 1 ? args.table_stride : 0), alignment);
  return alignment - step + static_cast<int64_t>(reinterpret_cast<uintptr_t>(args.table)) % step;
}

template <typename Word>
cudaError_t run(const GatherRowsArgs& args, cudaStream_t stream) {
  constexpr auto kVectorBytes = static_cast<int64_t>(sizeof(Word));
  KernelArgs kernel{{args.ids, args.is_int64}, args.ids_stride, args.num_ids};
  kernel.table = static_cast<const char*>(args.table);
  kernel.table_rows = args.table_rows;
  kernel.table_stride = args.table_stride;
  kernel.out = static_cast<char*>(args.out);
  kernel.row_vectors = static_cast<int32_t>(args.row_bytes / kVectorBytes);
  const bool is_long = kernel.row_vectors > kWarpSize;
  const int64_t most_idle = most_past(kAccessAlignment<Word>, args) / kVectorBytes;
  kernel.row_accesses = is_long ? static_cast<int32_t>(ceil_div(kernel.row_vectors + most_idle, kWarpSize)) : 1;
  kernel.log2_lanes = log2_ceil(is_long ? kWarpSize : kernel.row_vectors);
  const int64_t accesses = ceil_div(args.num_ids, kWarpSize >> kernel.log2_lanes) * kernel.row_accesses;
  const int64_t batches = ceil_div(accesses, kAccesses);
  kernel.batches = copy_batches(batches);
  const int64_t warps = ceil_div(batches, kernel.batches);
  return halfgnn::cuda::launch(gather_rows_kernel<Word>, ceil_div(warps, kWarps), kWarps * kWarpSize, stream, kernel);
}

}  // namespace

cudaError_t gather_rows(const GatherRowsArgs& args, const Launch& launch) {
  if (args.num_ids == 0 || args.row_bytes == 0) return cudaSuccess;
  if (args.row_bytes > kMostRowBytes) return cudaErrorInvalidValue;
  const auto stride = static_cast<uint64_t>(args.table_rows > 1 ? args.table_stride : 0);
  const auto addresses = reinterpret_cast<uintptr_t>(args.table) | reinterpret_cast<uintptr_t>(args.out);
  switch (common_alignment(static_cast<uint64_t>(args.row_bytes) | stride | addresses, kMaxVectorBytes)) {
    case 16: return run<uint4>(args, launch.stream);
    case 8: return run<uint2>(args, launch.stream);
    case 4: return run<unsigned int>(args, launch.stream);
    case 2: return run<unsigned short>(args, launch.stream);
    default: return run<unsigned char>(args, launch.stream);
  }
}

}  // namespace halfgnn::cuda
