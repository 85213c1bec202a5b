// The kernel behind combine.h.

#include "combine.h"

#include "long_rows.cuh"
#include "scalar.cuh"

namespace halfgnn::cuda {
namespace {

struct KernelArgs {
  CombineArgs args;
  CombineGrid grid;
};

// What every sum of the row is multiplied by.
__device__ double multiplier(const CombineArgs& args, const LongRow& row) {
  const double factor = args.factor;
  return args.divide_by_degree ? factor / static_cast<double>(row.degree) : factor;
}

template <bool kFolds>
__global__ void __launch_bounds__(kCombineThreads, 2) combine_kernel(const KernelArgs kernel) {
  const CombineArgs& args = kernel.args;
  const auto add_up = [&](const LongRow& row, const CombineTeam& team, int64_t first, int64_t step) {
    const double times = multiplier(args, row);
    for (int64_t begin = first * kWarpSize; begin < args.len; begin += step * kWarpSize) {
      const int64_t column = begin + team.lane;
      const bool exists = column < args.len;
      const double sum = sum_column({args.partial, args.len}, row, team, column, exists);
      if (team.warp != 0 || !exists) continue;
      if (kFolds) {
        args.partial[row.slot(0) * args.len + column] = static_cast<float>(sum);
      } else {
        store_scalar(args.out, args.out_type, int64_t{row.row} * args.len + column, static_cast<float>(times * sum));
      }
    }
  };
  for_each_long_row<kFolds>(args.rows, kernel.grid, add_up);
}

}  // namespace

cudaError_t combine(const CombineArgs& args, const Launch& launch) {
  if (args.rows.num_slots == 0 || args.len <= 0) return cudaSuccess;
  return launch_combine(combine_kernel<true>, combine_kernel<false>, KernelArgs{args, {}}, args.rows,
                        ceil_div(args.len, kWarpSize), launch.stream);
}

}  // namespace halfgnn::cuda
