// The launchers of gated_sum.h.

#include "gated_sum.h"

#include "../core/combine.h"
#include "../core/long_rows.cuh"
#include "../core/scalar.cuh"
#include "gated_sum_launch.h"

namespace halfgnn::cuda {
namespace {

// ---- The results of long rows: quotients of sums over pieces.

struct CombineGatedArgs {
  Rows rows;
  CombineGrid grid;
  float* partial;
  float* partial_gates;
  int64_t dim;
  GatedResult result;
  DType type;  // of out
};

__device__ void store_quotient(const CombineGatedArgs& args, int64_t place, double sum, double gates) {
  const double scale = 1. / (gates + static_cast<double>(args.result.eps));
  const auto quotient = static_cast<float>(sum * scale);
  store_scalar(args.result.out, args.type, place, quotient);
  if (args.result.scale != nullptr) args.result.scale[place] = static_cast<float>(scale);
  if (args.result.quotient != nullptr) args.result.quotient[place] = quotient;
}

template <bool kFolds>
__global__ void __launch_bounds__(kCombineThreads, 2) combine_gated_kernel(const CombineGatedArgs args) {
  for_each_long_row<kFolds>(
      args.rows, args.grid, [&](const LongRow& row, const CombineTeam& team, int64_t first, int64_t step) {
        for (int64_t begin = first * kWarpSize; begin < args.dim; begin += step * kWarpSize) {
          const int64_t column = begin + team.lane, slot = row.slot(0) * args.dim + column;
          const bool exists = column < args.dim;
          const double sum = sum_column({args.partial, args.dim}, row, team, column, exists);
          const double gates = sum_column({args.partial_gates, args.dim}, row, team, column, exists);
          if (team.warp != 0 || !exists) continue;
          if (kFolds) {
            args.partial[slot] = static_cast<float>(sum);
            args.partial_gates[slot] = static_cast<float>(gates);
          } else {
            store_quotient(args, int64_t{row.row} * args.dim + column, sum, gates);
          }
        }
      });
}

cudaError_t combine_gated(const GatedSumArgs& args, const GatedSumKernelArgs& kernel_args, const Launch& launch) {
  const Rows rows = rows_of(args.topology);
  if (!args.normalize) {
    return combine({rows, kernel_args.partial, args.dim, 1.f, false, args.out, args.type}, launch);
  }
  if (rows.num_slots == 0) return cudaSuccess;
  const CombineGatedArgs combine_args{
      rows, {}, kernel_args.partial, kernel_args.partial_gates, args.dim, kernel_args.result, args.type};
  return launch_combine(combine_gated_kernel<true>, combine_gated_kernel<false>, combine_args, rows,
                        ceil_div(args.dim, kWarpSize), launch.stream);
}

}  // namespace

size_t gated_sum_workspace(const GatedSumArgs& args) {
  return (args.normalize ? 2 : 1) * partial_bytes(rows_of(args.topology), args.dim);
}

cudaError_t gated_sum(const GatedSumArgs& args, const Launch& launch) {
  if (args.type == DType::kDouble || !fits_gather(args.dim)) return cudaErrorInvalidValue;
  if (args.topology.num_rows == 0 || args.dim == 0) return cudaSuccess;

  GatedSumKernelArgs kernel_args{};
  kernel_args.edge_ids = edge_ids_of(args.topology);
  kernel_args.value = args.value;
  kernel_args.gate_dst = args.gate_dst;
  kernel_args.edges = edge_arrays_of(args.gate_edge, args.edges, args.edge_value);
  kernel_args.result = {args.normalize, static_cast<float>(args.eps), args.out, static_cast<float*>(args.scale),
                        static_cast<float*>(args.quotient)};
  kernel_args.partial = static_cast<float*>(launch.workspace);
  kernel_args.partial_gates = kernel_args.partial + rows_of(args.topology).num_slots * args.dim;
  const int64_t row_bytes = args.dim * size_of(args.type);
  // Two rows are gathered. The planner knows of one: the other is counted as a part of the stream.
  const GatherShape shape{args.gate_src,
                          args.num_cols,
                          row_bytes,
                          false,
                          ids_bytes(args.topology),
                          (args.edge_value != nullptr ? kGatedValuesWork : kGatedSumWork)[0],
                          (1 + kernel_args.edges.count()) * row_bytes};
  const cudaError_t status =
      with_type(args.type, [&](auto t) { return gated_sum_of<TypeOf<decltype(t)>>(args, kernel_args, shape, launch); });
  return status != cudaSuccess ? status : combine_gated(args, kernel_args, launch);
}

size_t gated_sum_backward_workspace(const GatedSumBackwardArgs& args) {
  const size_t part = partial_bytes(rows_of(args.topology), args.dim);
  return (args.grad_gate != nullptr ? part : 0) + (args.grad_value != nullptr ? part : 0);
}

cudaError_t gated_sum_backward(const GatedSumBackwardArgs& args, const Launch& launch) {
  const bool same_types = args.grad_type == args.type;
  if (args.type == DType::kDouble || (!same_types && args.grad_type != DType::kFloat) || !fits_gather(args.dim) ||
      (args.shift != nullptr && args.grad_type != DType::kFloat)) {
    return cudaErrorInvalidValue;
  }
  if (args.topology.num_rows == 0 || args.dim == 0) return cudaSuccess;

  const Rows rows = rows_of(args.topology);
  GatedBackwardKernelArgs kernel_args{};
  kernel_args.edge_ids = edge_ids_of(args.topology);
  kernel_args.own_gate = args.by_src ? args.gate_src : args.gate_dst;
  kernel_args.value = args.value;
  kernel_args.grad = args.grad;
  kernel_args.shift = static_cast<const float*>(args.shift);
  kernel_args.edges =
      edge_arrays_of(args.gate_edge, args.grad_edges, args.grad_gate_edge, args.edge_value, args.grad_edge_value);
  kernel_args.grad_gate = args.grad_gate;
  kernel_args.grad_value = args.by_src ? args.grad_value : nullptr;
  kernel_args.partial_gate = static_cast<float*>(launch.workspace);
  kernel_args.partial_value = kernel_args.partial_gate + (args.grad_gate != nullptr ? rows.num_slots * args.dim : 0);
  const int64_t row_bytes = args.dim * size_of(args.type);
  int64_t others = args.by_src ? args.dim * size_of(args.grad_type) : row_bytes;  // that are gathered, see gated_sum
  if (args.by_src && args.shift != nullptr) others += args.dim * size_of(DType::kFloat);
  const GatherShape shape{args.by_src ? args.gate_dst : args.gate_src,
                          args.num_cols,
                          row_bytes,
                          false,
                          ids_bytes(args.topology),
                          (args.edge_value != nullptr ? kGatedValuesWork : kGatedSumWork)[args.by_src ? 2 : 1],
                          others + kernel_args.edges.count() * row_bytes};
  cudaError_t status = with_type(
      args.type, [&](auto t) { return gated_sum_backward_of<TypeOf<decltype(t)>>(args, kernel_args, shape, launch); });
  const auto add_pieces = [&](void* out, float* partial) {
    if (status != cudaSuccess || out == nullptr) return;
    status = combine({rows, partial, args.dim, 1.f, false, out, args.type}, launch);
  };
  add_pieces(kernel_args.grad_gate, kernel_args.partial_gate);
  add_pieces(kernel_args.grad_value, kernel_args.partial_value);
  return status;
}

}  // namespace halfgnn::cuda
