// Between edge_sum.cu, which chooses, and edge_sum.cuh and edge_sum_backward.cuh, which hold the kernels.
#pragma once

#include "edge_sum.h"
#include "spmm.cuh"

namespace halfgnn::cuda {

// x e ; x + sign e ; relu(x + e)
enum class Message { kMul, kAdd, kReluAdd };

struct EdgeSumKernelArgs {
  Gather gather;  // feat
  Ids edge_ids;
  const void* edge;
  uint32_t edge_row_bytes;
  float sign;
  bool divide_by_degree;
  void* out;
  bool out_is_float;
  float* partial;
};

struct EdgeSumBackwardKernelArgs {
  Gather gather;  // grad
  Ids edge_ids;
  const void* feat;  // null: not read
  const void* edge;  // or the gradient of it, if it is not read
  bool reads_edge, writes_edge;
  int64_t grad_edge_distance;  // from edge to its gradient, in bytes
  uint32_t feat_row_bytes;
  uint32_t edge_row_bytes;
  float sign;
  InverseDegrees scale;  // of the columns
  void* grad_feat;       // null: not wanted
  float* partial;
};

// For features of type T. The build instantiates them: build_sources.py.
template <typename T>
cudaError_t edge_sum_of(const EdgeSumArgs& args, const EdgeSumKernelArgs& kernel_args, const GatherShape& shape,
                        const Launch& launch);
template <typename T>
cudaError_t edge_sum_backward_of(const EdgeSumBackwardArgs& args, const EdgeSumBackwardKernelArgs& kernel_args,
                                 const GatherShape& shape, const Launch& launch);

}  // namespace halfgnn::cuda
