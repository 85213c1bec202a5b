// The kernel behind combine_extrema.h.

#include "combine_extrema.h"

#include "../core/long_rows.cuh"

namespace halfgnn::cuda {
namespace {

constexpr int kUnroll = 4;     // slots that a lane has in flight
constexpr int kMinBlocks = 2;  // 32 warps on a multiprocessor. For 48, sm_80 has too few registers by two

struct KernelArgs {
  CombineExtremaArgs args;
  CombineGrid grid;
};

struct Extremum {
  float value;
  uint32_t position;

  static __device__ Extremum none() { return {-INFINITY, kNoPosition}; }
  __device__ void take(const Extremum& other) { take_better(other.value, other.position, value, position); }
};

// The best of one column over the team's slots.
__device__ Extremum best_of_column(const CombineExtremaArgs& args, const LongRow& row, const CombineTeam& team,
                                   int64_t column) {
  Extremum best = Extremum::none(), loaded[kUnroll];
  for_each_slot<kUnroll>(
      row, team,
      [&](int u, int64_t slot) {
        const int64_t at = slot * args.len + column;
        loaded[u].value = __ldcs(args.partial + at);
        loaded[u].position = __ldcs(args.partial_position + at);
      },
      [&](int u) { best.take(loaded[u]); });
  return best;
}

__device__ void store(const CombineExtremaArgs& args, const LongRow& row, int64_t column, const Extremum& best) {
  const float values[1] = {best.value};
  const uint32_t positions[1] = {best.position};
  store_extrema(args.result, int64_t{row.row} * args.len + column, true, values, positions);
}

template <bool kFolds>
__global__ void __launch_bounds__(kCombineThreads, kMinBlocks) combine_extrema_kernel(const KernelArgs kernel) {
  const CombineExtremaArgs& args = kernel.args;
  const auto join = [&](const LongRow& row, const CombineTeam& team, int64_t first, int64_t step) {
    for (int64_t begin = first * kWarpSize; begin < args.len; begin += step * kWarpSize) {
      const int64_t column = begin + team.lane, at = row.slot(0) * args.len + column;
      const bool exists = column < args.len;
      Extremum best;
      if (exists) best = best_of_column(args, row, team, column);
      best = team.join(best, [](Extremum a, const Extremum& b) {
        a.take(b);
        return a;
      });
      if (team.warp != 0 || !exists) continue;
      if (kFolds) {
        args.partial[at] = best.value;
        args.partial_position[at] = best.position;
      } else {
        store(args, row, column, best);
      }
    }
  };
  for_each_long_row<kFolds>(args.rows, kernel.grid, join);
}

}  // namespace

cudaError_t combine_extrema(const CombineExtremaArgs& args, const Launch& launch) {
  if (args.rows.num_slots == 0 || args.len <= 0) return cudaSuccess;
  return launch_combine(combine_extrema_kernel<true>, combine_extrema_kernel<false>, KernelArgs{args, {}}, args.rows,
                        ceil_div(args.len, kWarpSize), launch.stream);
}

}  // namespace halfgnn::cuda
