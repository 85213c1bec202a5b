// The launchers of edge_sum.h.

#include "edge_sum.h"

#include "../core/combine.h"
#include "edge_sum_launch.h"

namespace halfgnn::cuda {
namespace {

bool is_message(Op op) { return op == Op::kMul || op == Op::kAdd || op == Op::kSub || op == Op::kReluAdd; }

bool is_valid(int64_t dim, DType type, DType edge_type, DType sum_type) {
  const auto same_or_float = [type](DType other) { return other == type || other == DType::kFloat; };
  return type != DType::kDouble && may_mix(type, edge_type) && same_or_float(sum_type) && fits_gather(dim);
}

float sign_of(Op op) { return op == Op::kSub ? -1.f : 1.f; }

}  // namespace

size_t edge_sum_workspace(const EdgeSumArgs& args) { return partial_bytes(rows_of(args.topology), args.dim); }

cudaError_t edge_sum(const EdgeSumArgs& args, const Launch& launch) {
  if (!is_message(args.op) || !is_valid(args.dim, args.type, args.edge_type, args.out_type)) {
    return cudaErrorInvalidValue;
  }
  if (args.topology.num_rows == 0 || args.dim == 0) return cudaSuccess;

  const int64_t edge_bytes = args.dim * size_of(args.edge_type);
  EdgeSumKernelArgs kernel_args{};
  kernel_args.edge_ids = edge_ids_of(args.topology);
  kernel_args.edge = args.edge;
  kernel_args.edge_row_bytes = static_cast<uint32_t>(edge_bytes);
  kernel_args.sign = sign_of(args.op);
  kernel_args.divide_by_degree = args.divide_by_degree;
  kernel_args.out = args.out;
  kernel_args.out_is_float = args.out_type == DType::kFloat;
  kernel_args.partial = static_cast<float*>(launch.workspace);
  const GatherShape shape{args.feat,    args.feat_rows, args.dim * size_of(args.type), false, ids_bytes(args.topology),
                          kEdgeSumWork, edge_bytes};
  const cudaError_t status =
      with_type(args.type, [&](auto t) { return edge_sum_of<TypeOf<decltype(t)>>(args, kernel_args, shape, launch); });
  if (status != cudaSuccess) return status;
  return combine(
      {rows_of(args.topology), kernel_args.partial, args.dim, 1.f, args.divide_by_degree, args.out, args.out_type},
      launch);
}

size_t edge_sum_backward_workspace(const EdgeSumBackwardArgs& args) {
  return args.grad_feat != nullptr ? partial_bytes(rows_of(args.topology), args.dim) : 0;
}

cudaError_t edge_sum_backward(const EdgeSumBackwardArgs& args, const Launch& launch) {
  if (!is_message(args.op) || !is_valid(args.dim, args.type, args.edge_type, args.grad_type)) {
    return cudaErrorInvalidValue;
  }
  if (args.topology.num_rows == 0 || args.dim == 0) return cudaSuccess;

  const int64_t edge_bytes = args.dim * size_of(args.edge_type);
  EdgeSumBackwardKernelArgs kernel_args{};
  kernel_args.edge_ids = edge_ids_of(args.topology);
  kernel_args.feat = args.feat;
  kernel_args.reads_edge = args.edge != nullptr;
  kernel_args.writes_edge = args.grad_edge != nullptr;
  kernel_args.edge = kernel_args.reads_edge ? args.edge : args.grad_edge;
  kernel_args.grad_edge_distance =
      reinterpret_cast<intptr_t>(args.grad_edge) - reinterpret_cast<intptr_t>(kernel_args.edge);
  kernel_args.feat_row_bytes = static_cast<uint32_t>(args.dim * size_of(args.type));
  kernel_args.edge_row_bytes = static_cast<uint32_t>(edge_bytes);
  kernel_args.sign = sign_of(args.op);
  kernel_args.scale = inverse_degrees_of(args.mean_indptr, args.topology);
  kernel_args.grad_feat = args.grad_feat;
  kernel_args.partial = static_cast<float*>(launch.workspace);
  const int64_t edge_rows = kernel_args.reads_edge + kernel_args.writes_edge;
  const GatherShape shape{args.grad,
                          args.grad_rows,
                          args.dim * size_of(args.grad_type),
                          false,
                          ids_bytes(args.topology),
                          kEdgeSumBackwardWork,
                          edge_rows * edge_bytes};
  const cudaError_t status = with_type(
      args.type, [&](auto t) { return edge_sum_backward_of<TypeOf<decltype(t)>>(args, kernel_args, shape, launch); });
  if (status != cudaSuccess || args.grad_feat == nullptr) return status;
  return combine({rows_of(args.topology), kernel_args.partial, args.dim, 1.f, false, args.grad_feat, args.type},
                 launch);
}

}  // namespace halfgnn::cuda
