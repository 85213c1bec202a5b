// The kernel behind combine_extrema.h.

#include "combine_extrema.h"

namespace halfgnn::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
// Independent loads a lane has in flight.
constexpr int kUnroll = 4;
// Rows of more slots get the whole block.
constexpr int64_t kFewSlots = 2 * kUnroll;

// The best of element `column` over slots first, first + stride, ... of a row. Loads past the last slot read it again.
__device__ void best_of_slots(const CombineExtremaArgs& args, const LongRow& row, int64_t first, int64_t stride,
                              int64_t column, float& best, uint32_t& best_position) {
  best = -INFINITY;
  best_position = kNoPosition;
  for (int64_t slot = first; slot < row.num_slots; slot += kUnroll * stride) {
    float value[kUnroll];
    uint32_t position[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t wanted = slot + u * stride;
      const int64_t read = row.first_slot + (wanted < row.num_slots ? wanted : row.num_slots - 1);
      value[u] = __ldcs(args.partial + read * args.len + column);
      position[u] = __ldcs(args.partial_position + read * args.len + column);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) take_better(value[u], position[u], best, best_position);
  }
}

__device__ void store_extremum(const CombineExtremaArgs& args, const LongRow& row, int64_t column, float best,
                               uint32_t position) {
  const float values[1] = {best};
  const uint32_t positions[1] = {position};
  store_extrema(args.result, row.row * args.len + column, values, positions);
}

// The whole block takes part.
__device__ void combine_by_block(const CombineExtremaArgs& args, const LongRow& row, int warp, int lane) {
  __shared__ float values[kWarps][kWarpSize];
  __shared__ uint32_t positions[kWarps][kWarpSize];
  for (int64_t first = 0; first < args.len; first += kWarpSize) {
    const int64_t column = first + lane < args.len ? first + lane : args.len - 1;
    float best;
    uint32_t position;
    best_of_slots(args, row, warp, kWarps, column, best, position);
    values[warp][lane] = best;
    positions[warp][lane] = position;
    __syncthreads();
    if (warp == 0) {
      for (int w = 1; w < kWarps; ++w) take_better(values[w][lane], positions[w][lane], best, position);
      if (first + lane < args.len) store_extremum(args, row, column, best, position);
    }
    __syncthreads();
  }
}

// A warp a slot looks for a long row that starts there; rows of few slots it combines itself.
__global__ void __launch_bounds__(kThreads) combine_extrema_kernel(const CombineExtremaArgs args) {
  __shared__ LongRow found[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kWarps + warp;

  LongRow row;
  if (slot >= args.rows.num_slots || !find_long_row(args.rows, slot, lane, row)) row.num_slots = 0;
  if (row.num_slots <= kFewSlots) {
    for (int64_t column = lane; row.num_slots > 0 && column < args.len; column += kWarpSize) {
      float best;
      uint32_t position;
      best_of_slots(args, row, 0, 1, column, best, position);
      store_extremum(args, row, column, best, position);
    }
    row.num_slots = 0;
  }
  if (lane == 0) found[warp] = row;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    if (found[w].num_slots > 0) combine_by_block(args, found[w], warp, lane);
  }
}

}  // namespace

cudaError_t combine_extrema(const CombineExtremaArgs& args, const Launch& launch) {
  if (args.rows.num_slots == 0 || args.len <= 0) return cudaSuccess;
  return cuda::launch(combine_extrema_kernel, ceil_div(args.rows.num_slots, kWarps), kThreads, launch.stream, args);
}

}  // namespace halfgnn::cuda
