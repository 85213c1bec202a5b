// The kernel behind combine.h.
//
// A warp a slot looks for a long row that starts there, and adds its partial rows up if they are few. The rest are
// summed by the whole block, one after the other: a long row has kFewSlots slots at least to itself then, so that there
// are few of them in a block.

#include "combine.h"
#include "scalar.cuh"

namespace halfgnn::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarpSize;
// Independent loads a lane has in flight.
constexpr int kUnroll = 8;
constexpr int kFewSlots = 2 * kUnroll;
// Blocks that one launch aims at: more would search for the same rows again.
constexpr int64_t kWantedBlocks = 1024;

struct CombineGrid {
  CombineArgs args;
  uint32_t slot_blocks;   // blocks that cover all slots
  uint32_t column_steps;  // blocks that share the columns of a row
};

// The sum of column `column` over slots first, first + stride, ... of a row. Loads past the last slot read it again.
__device__ double sum_column(const CombineArgs& args, const LongRow& row, int64_t first, int64_t stride,
                             int64_t column) {
  double sum = 0;
  for (int64_t slot = first; slot < row.num_slots; slot += kUnroll * stride) {
    float value[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t wanted = slot + u * stride;
      const int64_t read = row.first_slot + (wanted < row.num_slots ? wanted : row.num_slots - 1);
      value[u] = __ldcs(args.partial + read * args.len + column);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (slot + u * stride < row.num_slots) sum += static_cast<double>(value[u]);
    }
  }
  return sum;
}

// What every sum of the row is multiplied by.
__device__ double multiplier(const CombineArgs& args, const LongRow& row) {
  const double factor = args.factor;
  return args.divide_by_degree ? factor / static_cast<double>(row.degree) : factor;
}

__device__ void store_column(const CombineArgs& args, const LongRow& row, int64_t column, double value) {
  store_scalar(args.out, args.out_type, row.row * args.len + column, static_cast<float>(value));
}

__device__ void sum_row_by_warp(const CombineArgs& args, const LongRow& row, int64_t column, int64_t column_stride) {
  const double times = multiplier(args, row);
  for (; column < args.len; column += column_stride) {
    store_column(args, row, column, times * sum_column(args, row, 0, 1, column));
  }
}

// The whole block takes part.
__device__ void sum_row_by_block(const CombineArgs& args, const LongRow& row, int64_t first_column,
                                 int64_t column_stride, int warp, int lane) {
  __shared__ double sums[kWarps][kWarpSize];
  const double times = multiplier(args, row);
  for (int64_t column = first_column; column < args.len; column += column_stride) {
    const int64_t own = column + lane;
    sums[warp][lane] = own < args.len ? sum_column(args, row, warp, kWarps, own) : 0;
    for (int half = kWarps / 2; half > 0; half /= 2) {
      __syncthreads();
      if (warp < half) sums[warp][lane] += sums[warp + half][lane];
    }
    if (warp == 0 && own < args.len) store_column(args, row, own, times * sums[0][lane]);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads, 2) combine_kernel(const CombineGrid grid) {
  __shared__ LongRow found[kWarps];
  const CombineArgs& args = grid.args;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t slot = static_cast<int64_t>(blockIdx.x % grid.slot_blocks) * kWarps + warp;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x / grid.slot_blocks) * kWarpSize;
  const int64_t column_stride = static_cast<int64_t>(grid.column_steps) * kWarpSize;

  LongRow row{};
  if (slot >= args.rows.num_slots || !find_long_row(args.rows, slot, lane, row)) row.num_slots = 0;
  const bool is_long = row.num_slots > kFewSlots;
  if (row.num_slots > 0 && !is_long) sum_row_by_warp(args, row, first_column + lane, column_stride);
  if (!is_long) row.num_slots = 0;
  if (lane == 0) found[warp] = row;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    if (found[w].num_slots > 0) sum_row_by_block(args, found[w], first_column, column_stride, warp, lane);
  }
}

}  // namespace

cudaError_t combine(const CombineArgs& args, const Launch& launch) {
  if (args.rows.num_slots == 0 || args.len <= 0) return cudaSuccess;
  const int64_t slot_blocks = ceil_div(args.rows.num_slots, kWarps);
  const int64_t tiles = ceil_div(args.len, kWarpSize);
  const int64_t wanted = ceil_div(kWantedBlocks, slot_blocks);
  const int64_t column_steps = tiles < wanted ? tiles : wanted;
  const CombineGrid grid{args, static_cast<uint32_t>(slot_blocks), static_cast<uint32_t>(column_steps)};
  return cuda::launch(combine_kernel, slot_blocks * column_steps, kThreads, launch.stream, grid);
}

}  // namespace halfgnn::cuda
