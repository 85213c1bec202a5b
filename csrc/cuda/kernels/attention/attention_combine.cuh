// The walk over long rows of the kernels that combine what their pieces leave.
//
// A warp a slot looks for a long row that starts there, and works on it alone if its pieces are few. The rest are left
// to the whole block, one after the other: a long row has kFewSlots slots at least to itself then, so that there are
// few of them in a block.
#pragma once

#include "../core/rows.cuh"

namespace halfgnn::cuda {

constexpr int kCombineWarps = 16;
constexpr int kCombineThreads = kCombineWarps * kWarpSize;
constexpr int kFewSlots = 16;
// Blocks that one launch aims at: more would search for the same rows again.
constexpr int64_t kWantedCombineBlocks = 1024;

struct CombineGrid {
  uint32_t slot_blocks;  // blocks that cover all slots
  uint32_t shares;       // blocks that share the work on a row

  // `items`: independent parts of the work on a row.
  static CombineGrid make(const Rows& rows, int64_t items) {
    const int64_t slot_blocks = ceil_div(rows.num_slots, kCombineWarps);
    const int64_t wanted = ceil_div(kWantedCombineBlocks, slot_blocks);
    return {static_cast<uint32_t>(slot_blocks), static_cast<uint32_t>(items < wanted ? items : wanted)};
  }
  int64_t blocks() const { return int64_t{slot_blocks} * shares; }
};

// Who works on a row: one warp, or all of the block.
struct CombineTeam {
  int warp;   // of the team
  int warps;  // in it
  int lane;

  // The sum over the team's warps of each lane's value, for the lanes of its first warp; in a fixed order.
  __device__ double sum(double value) const {
    __shared__ double sums[kCombineWarps][kWarpSize];
    if (warps == 1) return value;
    sums[warp][lane] = value;
    for (int half = kCombineWarps / 2; half > 0; half /= 2) {
      __syncthreads();
      if (warp < half) sums[warp][lane] += sums[warp + half][lane];
    }
    const double total = warp == 0 ? sums[0][lane] : 0;  // no other warp: the first has written since the last barrier
    __syncthreads();
    return total;
  }
};

// Calls work(row, team, first, step) for all long rows of this block: for items first, first + step, ... of them.
template <class Work>
__device__ void for_each_long_row(const Rows& rows, const CombineGrid& grid, const Work& work) {
  __shared__ LongRow found[kCombineWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t slot = static_cast<int64_t>(blockIdx.x % grid.slot_blocks) * kCombineWarps + warp;
  const int64_t first = blockIdx.x / grid.slot_blocks, step = grid.shares;
  LongRow row{};
  if (slot >= rows.num_slots || !find_long_row(rows, slot, lane, row)) row.num_slots = 0;
  const bool is_for_block = row.num_slots > kFewSlots;
  if (row.num_slots > 0 && !is_for_block) work(row, CombineTeam{0, 1, lane}, first, step);
  if (!is_for_block) row.num_slots = 0;
  if (lane == 0) found[warp] = row;
  __syncthreads();
  for (int w = 0; w < kCombineWarps; ++w) {
    if (found[w].num_slots > 0) work(found[w], CombineTeam{warp, kCombineWarps, lane}, first, step);
  }
}

inline __device__ double sum_of_warp(double value) {
  for (int distance = 1; distance < kWarpSize; distance *= 2) value += __shfl_xor_sync(kFullMask, value, distance);
  return value;
}

}  // namespace halfgnn::cuda
