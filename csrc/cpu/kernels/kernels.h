// The CPU kernels as the bindings see them: one table of functions, built once for each instruction set and chosen at
// run time.
//
// Every kernel works on the rows [row_begin, row_end) of a compressed adjacency and writes only what belongs to those
// rows or to their edges, in edge order: results do not depend on how rows are divided among threads. Sums are fp32
// (fp64 for fp64 data), rounded once.
#pragma once

#include "../../core/arguments.h"

namespace halfgnn {

struct KernelTable {
  const char* name;
  // Whether sddmm_dot and mul_backward, or spmm_sum, take this shape; what they do not take goes to the general
  // kernels.
  bool (*has_vector_kernel)(DType type, int64_t dim);
  bool (*has_sum_kernel)(DType type, int64_t heads, int64_t dim);
  void (*spmm_sum)(const SpmmSumArgs&, int64_t row_begin, int64_t row_end);
  void (*spmm)(const SpmmArgs&, int64_t row_begin, int64_t row_end);
  void (*sddmm_dot)(const SddmmArgs&, int64_t row_begin, int64_t row_end);  // plain dot of rows of one type
  // No broadcasting, no scale, half or fp32 operands of one type, rows of one value at least.
  void (*sddmm_elementwise)(const SddmmArgs&, int64_t row_begin, int64_t row_end);
  void (*sddmm)(const SddmmArgs&, int64_t row_begin, int64_t row_end);
  void (*mul_backward)(const MulBackwardArgs&, int64_t row_begin, int64_t row_end);
  void (*backward)(const BackwardArgs&, int64_t row_begin, int64_t row_end);
  void (*edge_softmax)(const EdgeSoftmaxArgs&, int64_t row_begin, int64_t row_end);
  void (*edge_softmax_backward)(const EdgeSoftmaxArgs&, int64_t row_begin, int64_t row_end);
};

// The best table for this processor.
const KernelTable& kernels();

}  // namespace halfgnn
