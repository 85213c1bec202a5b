// The walk of kernels that combine what the pieces of long rows left in the workspace.
//
// A warp looks for the long rows that start at some consecutive slots, one for each lane at most, and works on those of
// few pieces alone. The rest are left to the whole block, one after the other: a long row has kFewSlots slots at least
// to itself then, so that there are few of them in a block.
//
// A node of a million edges has thousands of slots, which one block would take long to read. So if there are many slots
// a first launch folds them: of a row with more than kFoldedSlots, blocks join each kFoldedSlots slots in the place of
// the first of them, and those places are then the slots of the row.
#pragma once

#include "launch.cuh"
#include "rows.cuh"

namespace halfgnn::cuda {

constexpr int kCombineWarps = 16;
constexpr int kCombineThreads = kCombineWarps * kWarpSize;
constexpr int kFewSlots = 16;
// Blocks that one launch aims at: about what a device runs at the same time. To find rows takes longer than to join
// what most of them have, so that more blocks, each with fewer slots, would take longer.
constexpr int64_t kWantedCombineBlocks = 256;
// Slots that are folded into one: each warp of a block has four, which are in flight together.
constexpr int kFoldedSlots = 64;
// Slots from which there is a launch that folds. With fewer, the longest row keeps several blocks busy for about as
// long as a launch takes.
constexpr int64_t kManyCombinedSlots = 2048;

struct CombineGrid {
  uint32_t slot_blocks;  // blocks that cover all slots
  uint32_t shares;       // blocks that share the work on a row
  int32_t units;         // of a block or warp: kFoldedSlots slots, or one
  bool is_folded;        // rows of more than kFoldedSlots slots are folded

  // A block has `slots` slots, or up to `most` times as many. `items`: independent parts of the work on a row.
  static CombineGrid make(const Rows& rows, int64_t slots, int32_t most, int64_t items) {
    int32_t units = 1;
    while (units < most && slots * units * kWantedCombineBlocks < rows.num_slots) units *= 2;
    const int64_t slot_blocks = ceil_div(rows.num_slots, slots * units);
    const int64_t wanted = ceil_div(kWantedCombineBlocks, slot_blocks);
    return {static_cast<uint32_t>(slot_blocks), static_cast<uint32_t>(items < wanted ? items : wanted), units,
            rows.num_slots >= kManyCombinedSlots};
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
// find(first slot, count): find_long_rows or its like.
template <class Find, class Work>
__device__ void for_each_whole_row(const CombineGrid& grid, const Find& find, const Work& work) {
  __shared__ LongRow found[kCombineWarps][kWarpSize];
  __shared__ uint32_t for_block[kCombineWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t warp_of_slots = static_cast<int64_t>(blockIdx.x % grid.slot_blocks) * kCombineWarps + warp;
  const int64_t first = blockIdx.x / grid.slot_blocks, step = grid.shares;
  LongRow own = find(warp_of_slots * grid.units, grid.units);
  if (grid.is_folded && own.num_slots > kFoldedSlots) {
    own.num_slots = static_cast<int32_t>(ceil_div(own.num_slots, kFoldedSlots));
    own.stride = kFoldedSlots;
  }
  found[warp][lane] = own;
  uint32_t left = __ballot_sync(kFullMask, own.num_slots > 0 && own.num_slots <= kFewSlots);
  const uint32_t many = __ballot_sync(kFullMask, own.num_slots > kFewSlots);
  if (lane == 0) for_block[warp] = many;
  __syncwarp();
  for (; left != 0; left &= left - 1) {
    work(found[warp][__ffs(static_cast<int>(left)) - 1], CombineTeam{0, 1, lane}, first, step);
  }
  __syncthreads();
  for (int w = 0; w < kCombineWarps; ++w) {
    for (left = for_block[w]; left != 0; left &= left - 1) {
      work(found[w][__ffs(static_cast<int>(left)) - 1], CombineTeam{warp, kCombineWarps, lane}, first, step);
    }
  }
}

// Of the slots first ... last, at most kFoldedSlots: the part of a row that is folded into one of them. It is of the
// row at `first` or, if begins_later, of one that begins behind that slot and holds `last`. No slots if there is none.
// The whole warp takes part.
inline __device__ LongRow folded_part(const Rows& rows, int64_t first, int64_t last, bool begins_later, int lane) {
  const int64_t position = (begins_later ? last : first) << rows.log2_piece;
  const int64_t row = row_of_position(rows, position, lane, 0, rows.num_rows);
  const int64_t begin = rows.indptr.offset(row), end = rows.indptr.offset(row + 1);
  LongRow part = long_row_of(rows, row, begin, end);
  const int64_t before = first - part.first_slot;
  const bool exists = rows.is_long(end - begin) && part.num_slots > kFoldedSlots && begins_later == (before < 0);
  const int64_t skipped = before > 0 ? ceil_div(before, kFoldedSlots) * kFoldedSlots : 0;
  const int64_t left = exists ? part.num_slots - skipped : 0;
  part.first_slot += static_cast<int32_t>(skipped);
  part.num_slots = static_cast<int32_t>(left < kFoldedSlots ? left : kFoldedSlots);
  return part;
}

// Calls work(part, team, first, step) for the parts that this block folds, with the whole block as the team.
template <class Work>
__device__ void for_each_folded_part(const Rows& rows, const CombineGrid& grid, const Work& work) {
  // Two of each unit, and as many warps look for them.
  __shared__ LongRow found[kCombineWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t unit = static_cast<int64_t>(blockIdx.x % grid.slot_blocks) * grid.units + warp / 2;
  const int64_t first = unit * kFoldedSlots, behind = first + kFoldedSlots;
  LongRow part{};
  if (warp < 2 * grid.units && first < rows.num_slots) {
    part = folded_part(rows, first, (behind < rows.num_slots ? behind : rows.num_slots) - 1, warp % 2 == 1, lane);
  }
  if (lane == 0) found[warp] = part;
  __syncthreads();
  for (int w = 0; w < 2 * grid.units; ++w) {
    // One slot is folded as it is.
    if (found[w].num_slots < 2) continue;
    const int64_t share = blockIdx.x / grid.slot_blocks;
    work(found[w], CombineTeam{warp, kCombineWarps, lane}, share, int64_t{grid.shares});
  }
}

// What a kernel of both launches walks: parts that are folded, or rows.
template <bool kFolds, class Work>
__device__ void for_each_long_row(const Rows& rows, const CombineGrid& grid, const Work& work) {
  if constexpr (kFolds) {
    for_each_folded_part(rows, grid, work);
  } else {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    for_each_whole_row(grid, [&](int64_t slot, int count) { return find_long_rows(rows, slot, count, lane); }, work);
  }
}

// Launches `fold` if there are many slots, then `combine`, with args.grid set. `items`: independent parts of the work
// on a row.
template <class Args>
cudaError_t launch_combine(void (*fold)(Args), void (*combine)(Args), Args args, const Rows& rows, int64_t items,
                           cudaStream_t stream) {
  if (rows.num_slots >= kManyCombinedSlots) {
    args.grid = CombineGrid::make(rows, kFoldedSlots, kCombineWarps / 2, items);
    const cudaError_t status = cuda::launch(fold, args.grid.blocks(), kCombineThreads, stream, args);
    if (status != cudaSuccess) return status;
  }
  args.grid = CombineGrid::make(rows, kCombineWarps, kWarpSize, items);
  return cuda::launch(combine, args.grid.blocks(), kCombineThreads, stream, args);
}

// The slots of a long row that a team's warp takes, kUnroll of them in flight: calls load(u, slot) for all of a batch,
// then use(u) for those that exist. Past the last slot, load() gets that one again.
template <int kUnroll, class Load, class Use>
__device__ void for_each_slot(const LongRow& row, const CombineTeam& team, const Load& load, const Use& use) {
  for (int slot = team.warp; slot < row.num_slots; slot += kUnroll * team.warps) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int wanted = slot + u * team.warps;
      load(u, row.slot(wanted < row.num_slots ? wanted : row.num_slots - 1));
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
