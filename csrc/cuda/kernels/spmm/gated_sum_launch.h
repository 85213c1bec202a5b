// Between gated_sum.cu, which chooses, and gated_sum.cuh and gated_sum_backward.cuh, which hold the kernels.
#pragma once

#include "edge_arrays.h"
#include "gated_sum.h"
#include "spmm.cuh"

namespace halfgnn::cuda {

// What is made of the sums of a row.
struct GatedResult {
  bool normalize;
  float eps;
  void* out;
  float* scale;     // may be null
  float* quotient;  // may be null
};

struct GatedSumKernelArgs {
  Gather gather;  // gate_src
  Ids edge_ids;
  const void* value;
  const void* gate_dst;
  EdgeArrays<3> edges;  // gate_edge, z to be written, and edge_value
  GatedResult result;
  float* partial;        // sums of gate value of pieces of long rows, a row per slot
  float* partial_gates;  // and of the gates, if normalize
};

struct GatedBackwardKernelArgs {
  Gather gather;  // the gates of the columns
  Ids edge_ids;
  const void* own_gate;
  const void* value;    // by source: of the row, otherwise of the column
  const void* grad;     // by source: of the column, otherwise of the row
  const float* shift;   // beside grad; may be null
  EdgeArrays<5> edges;  // gate_edge, the gradient of z, that of gate_edge to be written; edge_value, and its
  void* grad_gate;      // null: not wanted
  void* grad_value;     // null: not wanted
  float* partial_gate;
  float* partial_value;
};

// For operands of type T. The build instantiates them: build_sources.py.
template <typename T>
cudaError_t gated_sum_of(const GatedSumArgs& args, const GatedSumKernelArgs& kernel_args, const GatherShape& shape,
                         const Launch& launch);
template <typename T>
cudaError_t gated_sum_backward_of(const GatedSumBackwardArgs& args, const GatedBackwardKernelArgs& kernel_args,
                                  const GatherShape& shape, const Launch& launch);

}  // namespace halfgnn::cuda
