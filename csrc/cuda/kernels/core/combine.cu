// The kernel behind combine.h.

#include "combine.h"

#include "long_rows.cuh"
#include "scalar.cuh"

namespace halfgnn::cuda {
namespace {

constexpr int kUnroll = 8;  // slots that a lane has in flight

struct KernelArgs {
  CombineArgs args;
  CombineGrid grid;
};

// The sum of one column over the team's slots.
__device__ double sum_column(const CombineArgs& args, const LongRow& row, const CombineTeam& team, int64_t column) {
  double sum = 0;
  float value[kUnroll];
  for_each_slot<kUnroll>(
      row, team, [&](int u, int64_t slot) { value[u] = __ldcs(args.partial + slot * args.len + column); },
      [&](int u) { sum += static_cast<double>(value[u]); });
  return sum;
}

// What every sum of the row is multiplied by.
__device__ double multiplier(const CombineArgs& args, const LongRow& row) {
  const double factor = args.factor;
  return args.divide_by_degree ? factor / static_cast<double>(row.degree) : factor;
}

__global__ void __launch_bounds__(kCombineThreads, 2) combine_kernel(const KernelArgs kernel) {
  const CombineArgs& args = kernel.args;
  for_each_long_row(
      args.rows, kernel.grid, [&](const LongRow& row, const CombineTeam& team, int64_t first, int64_t step) {
        const double times = multiplier(args, row);
        for (int64_t begin = first * kWarpSize; begin < args.len; begin += step * kWarpSize) {
          const int64_t column = begin + team.lane;
          const bool exists = column < args.len;
          const double sum = team.sum(exists ? sum_column(args, row, team, column) : 0);
          if (team.warp != 0 || !exists) continue;
          store_scalar(args.out, args.out_type, int64_t{row.row} * args.len + column, static_cast<float>(times * sum));
        }
      });
}

}  // namespace

cudaError_t combine(const CombineArgs& args, const Launch& launch) {
  if (args.rows.num_slots == 0 || args.len <= 0) return cudaSuccess;
  const KernelArgs kernel{args, CombineGrid::make(args.rows, ceil_div(args.len, kWarpSize))};
  return cuda::launch(combine_kernel, kernel.grid.blocks(), kCombineThreads, launch.stream, kernel);
}

}  // namespace halfgnn::cuda
