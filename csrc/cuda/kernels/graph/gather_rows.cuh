// The walk of kernels that gather rows by id. The lanes of a warp take consecutive vectors of a row, or of several
// short rows, and have loads of several accesses in flight; the ids of the next ones are loaded meanwhile.
//
// A table may lie in the CPU's memory, where the GPU reads it over PCIe ("zero copy"; Min et al., "Large Graph
// Convolutional Network Training with GPU-Oriented Data Communication Architecture", VLDB 2021). What a warp reads at
// once becomes a request for each line of 128 bytes that it touches, so a line that two accesses share is asked for
// twice. Accesses of long rows therefore begin at the boundary of a line: the first of a row that begins within one
// leaves its first lanes idle.
#pragma once

#include "../core/ids.cuh"
#include "../plan/units.h"
#include "gather_rows.h"

namespace halfgnn::cuda {

constexpr int kGatherWarps = 4;
constexpr int kGatherAccesses = 4;  // loads that a lane has in flight: a batch

// What accesses of long rows begin at a multiple of: a line, or what a warp reads of one at once.
template <typename Word>
constexpr int kAccessAlignment = sizeof(Word) < 4 ? kWarpSize * static_cast<int>(sizeof(Word)) : 128;

struct GatheredRows {
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
struct GatherPlace {
  int32_t row;  // from the warp's first on
  int32_t access;

  __device__ void advance(const GatheredRows& args) {
    const bool is_last = ++access == args.row_accesses;
    access = is_last ? 0 : access;
    row += is_last ? kWarpSize >> args.log2_lanes : 0;
  }
};

// What one warp gathers.
struct GatherPart {
  int64_t first_row;
  int32_t last_row;  // of all, from the first on; fewer if the warp has no use for as many
  int32_t lane;      // within its group

  // The id of a row, or of the last: loads without conditions stay in flight together.
  __device__ int64_t id(const GatheredRows& args, int32_t row) const {
    return args.ids.offset((first_row + (row < last_row ? row : last_row)) * args.ids_stride);
  }
};

// The vector that a lane takes, if it has one.
template <typename Word>
struct GatheredVector {
  Word word;
  int32_t vector;   // of its row
  uint32_t target;  // vectors from the first of the warp's first row on
  bool is_wanted;

  // Otherwise all bits of the word are `absent`.
  __device__ bool load(const GatheredRows& args, const GatherPart& part, const GatherPlace& place, int64_t id,
                       const Word& absent) {
    const bool is_valid = static_cast<uint64_t>(id) < static_cast<uint64_t>(args.table_rows);
    const char* row = args.table + (is_valid ? id : 0) * args.table_stride;
    const uint32_t past = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row)) % kAccessAlignment<Word>;
    const int32_t idle = args.row_accesses > 1 ? static_cast<int32_t>(past / sizeof(Word)) : 0;
    vector = place.access * kWarpSize + part.lane - idle;
    is_wanted = place.row <= part.last_row && vector >= 0 && vector < args.row_vectors;
    target = static_cast<uint32_t>(place.row) * static_cast<uint32_t>(args.row_vectors) + static_cast<uint32_t>(vector);
    // Rows are wanted once, and there may be more of them than the caches hold.
    word = is_wanted && is_valid ? __ldcs(reinterpret_cast<const Word*>(row) + vector) : absent;
    return is_valid;
  }
};

// Item: a vector on its way. load(args, part, place, id); store(args, the warp's first row).
template <typename Item, typename Args>
__device__ void gather_vectors(const Args& args) {
  const GatheredRows& rows = args.rows;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kGatherWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t first = warp * rows.batches * kGatherAccesses;
  const int64_t first_group = first / rows.row_accesses;
  const int64_t first_row = first_group * (kWarpSize >> rows.log2_lanes);
  const int64_t rest = rows.num_ids - 1 - first_row;
  if (rest < 0) return;  // whole warps, past the last row
  constexpr int32_t most = kMaxCopyBatches * kGatherAccesses * kWarpSize;
  const GatherPart part{first_row, rest < most ? static_cast<int32_t>(rest) : most,
                        lane & ((1 << rows.log2_lanes) - 1)};
  GatherPlace place{lane >> rows.log2_lanes, static_cast<int32_t>(first - first_group * rows.row_accesses)};
  GatherPlace ahead = place;
  int64_t ids[kGatherAccesses];
#pragma unroll
  for (int u = 0; u < kGatherAccesses; ++u) {
    ids[u] = part.id(rows, ahead.row);
    ahead.advance(rows);
  }
  for (int batch = 0; batch < rows.batches; ++batch) {
    Item items[kGatherAccesses];
#pragma unroll
    for (int u = 0; u < kGatherAccesses; ++u) {
      items[u].load(args, part, place, ids[u]);
      place.advance(rows);
    }
#pragma unroll
    for (int u = 0; u < kGatherAccesses; ++u) {
      ids[u] = part.id(rows, ahead.row);
      ahead.advance(rows);
    }
#pragma unroll
    for (int u = 0; u < kGatherAccesses; ++u) items[u].store(args, first_row);
  }
}

// The largest power of two that divides all of the bits' numbers, at most `most`, which is one.
inline int64_t common_alignment(uint64_t bits, int64_t most) {
  const uint64_t all = bits | static_cast<uint64_t>(most);
  return static_cast<int64_t>(all & (~all + 1));
}

// What a table's addresses and the lengths of its rows have in common, at most `most`.
inline int64_t table_alignment(const GatherRowsArgs& args, int64_t most) {
  const auto stride = static_cast<uint64_t>(args.table_rows > 1 ? args.table_stride : 0);
  return common_alignment(static_cast<uint64_t>(args.row_bytes) | stride | reinterpret_cast<uintptr_t>(args.table),
                          most);
}

// How far past a multiple of `alignment` a row of the table begins, at most.
inline int64_t most_past(int64_t alignment, const GatherRowsArgs& args) {
  const int64_t step = common_alignment(static_cast<uint64_t>(args.table_rows > 1 ? args.table_stride : 0), alignment);
  return alignment - step + static_cast<int64_t>(reinterpret_cast<uintptr_t>(args.table)) % step;
}

// kernel<<<...>>>(Args{rows, more...})
template <typename Word, typename Args, typename Kernel, typename... More>
cudaError_t launch_gather(Kernel kernel, const GatherRowsArgs& args, cudaStream_t stream, More... more) {
  constexpr auto kVectorBytes = static_cast<int64_t>(sizeof(Word));
  GatheredRows rows{};
  rows.ids = {args.ids, args.is_int64};
  rows.ids_stride = args.ids_stride;
  rows.num_ids = args.num_ids;
  rows.table = static_cast<const char*>(args.table);
  rows.table_rows = args.table_rows;
  rows.table_stride = args.table_stride;
  rows.out = static_cast<char*>(args.out);
  rows.row_vectors = static_cast<int32_t>(args.row_bytes / kVectorBytes);
  const bool is_long = rows.row_vectors > kWarpSize;
  const int64_t most_idle = most_past(kAccessAlignment<Word>, args) / kVectorBytes;
  rows.row_accesses = is_long ? static_cast<int32_t>(ceil_div(rows.row_vectors + most_idle, kWarpSize)) : 1;
  rows.log2_lanes = log2_ceil(is_long ? kWarpSize : rows.row_vectors);
  const int64_t accesses = ceil_div(args.num_ids, kWarpSize >> rows.log2_lanes) * rows.row_accesses;
  const int64_t batches = ceil_div(accesses, kGatherAccesses);
  rows.batches = copy_batches(batches);
  const int64_t warps = ceil_div(batches, rows.batches);
  return launch(kernel, ceil_div(warps, kGatherWarps), kGatherWarps * kWarpSize, stream, Args{rows, more...});
}

}  // namespace halfgnn::cuda
