// The walk of kernels that combine what the pieces of long rows left in the workspace.
//
// A warp per slot looks for a long row that starts there, and works on it alone if its pieces are few. The rest are
// left to the whole block, one after the other: a long row has kFewSlots slots at least to itself then, so that there
// are few of them in a block.
#pragma once

#include "rows.cuh"

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

// The team of a long row: one warp, or all of the block. Its warps take different slots.
struct CombineTeam {
  int warp;   // of the team
  int warps;  // in it
  int lane;

  // Joins each lane's values of the team's warps, for the lanes of its first warp; in a fixed order.
  template <class Value, class Join>
  __device__ Value join(Value value, const Join& join_values) const {
    __shared__ Value values[kCombineWarps][kWarpSize];
    if (warps == 1) return value;
    values[warp][lane] = value;
    for (int half = kCombineWarps / 2; half > 0; half /= 2) {
      __syncthreads();
      if (warp < half) values[warp][lane] = join_values(values[warp][lane], values[warp + half][lane]);
    }
    if (warp == 0) value = values[0][lane];  // no other warp: the first has written since the last barrier
    __syncthreads();
    return value;
  }
  __device__ double sum(double value) const {
    return join(value, [](double a, double b) { return a + b; });
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

// The slots of a long row that a team's warp takes, kUnroll of them in flight: calls load(u, slot) for all of a batch,
// then use(u) for those that exist. Past the last slot, load() gets that one again.
template <int kUnroll, class Load, class Use>
__device__ void for_each_slot(const LongRow& row, const CombineTeam& team, const Load& load, const Use& use) {
  for (int slot = team.warp; slot < row.num_slots; slot += kUnroll * team.warps) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int wanted = slot + u * team.warps;
      load(u, row.first_slot + (wanted < row.num_slots ? wanted : row.num_slots - 1));
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (slot + u * team.warps < row.num_slots) use(u);
    }
  }
}

// Partial rows: len fp32 values per slot.
struct PartialRows {
  const float* data;
  int64_t len;
};

// The sum of one column over the slots of a row, for the lanes of the team's first warp. A lane whose column does not
// exist takes part.
inline __device__ double sum_column(const PartialRows& partial, const LongRow& row, const CombineTeam& team,
                                    int64_t column, bool exists) {
  constexpr int kUnroll = 8;  // slots that a lane has in flight
  double sum = 0;
  float value[kUnroll];
  if (exists) {
    for_each_slot<kUnroll>(
        row, team, [&](int u, int64_t slot) { value[u] = __ldcs(partial.data + slot * partial.len + column); },
        [&](int u) { sum += static_cast<double>(value[u]); });
  }
  return team.sum(sum);
}

inline __device__ double sum_of_warp(double value) {
  for (int distance = 1; distance < kWarpSize; distance *= 2) value += __shfl_xor_sync(kFullMask, value, distance);
  return value;
}

}  // namespace halfgnn::cuda
