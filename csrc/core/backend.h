// A back end: the kernels of one device type, which the operators of csrc/ops call. Torch-free.
#pragma once

#include "arguments.h"
#include "attention.h"
#include "code_sum.h"
#include "gated_sum.h"
#include "head_logits.h"

namespace halfgnn {

// Every function works on the current device, and on its current stream where the device has streams.
struct Backend {
  bool has_double;
  // Whether mul_backward takes this shape, whether sddmm_dot takes it with these types of the two operands and the
  // result, and whether spmm_sum takes this one. The general kernels take the rest.
  bool (*has_vector_kernel)(DType type, int64_t dim);
  bool (*has_dot_kernel)(DType lhs, DType rhs, DType out, int64_t dim);
  bool (*has_sum_kernel)(DType type, int64_t heads, int64_t dim);
  void (*spmm_sum)(const SpmmSumArgs&);
  void (*spmm)(const SpmmArgs&);
  // Whether edge_sum and edge_sum_backward take rows of so many values. The general kernels take the rest.
  bool (*has_edge_sum_kernel)(DType type, int64_t dim);
  void (*edge_sum)(const EdgeSumArgs&);
  void (*edge_sum_backward)(const EdgeSumBackwardArgs&);
  void (*gated_sum)(const GatedSumArgs&);
  void (*gated_sum_backward)(const GatedSumBackwardArgs&);
  void (*code_sum)(const CodeSumArgs&);  // rows of at least one code
  // Whether copy_reduce and its backward take rows of so many values.
  bool (*has_reduce_kernel)(DType type, int64_t dim, int64_t num_edges);
  bool reduces_one_extreme;  // copy_reduce makes max and min alone, too; otherwise spmm does
  void (*copy_reduce)(const CopyReduceArgs&);
  void (*copy_reduce_backward)(const CopyReduceBackwardArgs&);
  void (*sddmm_dot)(const SddmmArgs&);  // plain dot; one operand at the row, one not
  // No broadcasting and no mean_indptr; operands of one type, half or fp32, with at least one value per row. Some take
  // one of each, and then an fp32 result.
  void (*sddmm_elementwise)(const SddmmArgs&);
  bool mixes_elementwise;
  void (*sddmm_add)(const SddmmAddArgs&);  // at least one value per row
  void (*sddmm)(const SddmmArgs&);
  void (*mul_backward)(const MulBackwardArgs&);
  // Whether sddmm_dot over in_edges and spmm_sum are taken to be faster together than mul_backward.
  bool (*takes_two_gathers)(const MulBackwardArgs&, const Topology& in_edges);
  void (*backward)(const BackwardArgs&);
  void (*edge_softmax)(const EdgeSoftmaxArgs&);
  void (*edge_softmax_backward)(const EdgeSoftmaxArgs&);
  void (*gat_attention)(const GatArgs&);
  void (*gat_attention_backward)(const GatArgs&);
  void (*head_logits)(const HeadLogitsArgs&);
  // Into how many parts head_logits_backward divides the rows; its num_parts is not read.
  int64_t (*head_logits_parts)(const HeadLogitsBackwardArgs&);
  void (*head_logits_backward)(const HeadLogitsBackwardArgs&);
  void (*pair_attention)(const PairAttentionArgs&);
  void (*pair_attention_backward)(const PairAttentionArgs&);
  // Whether pair_attention takes these terms of edges, of heads of `dim` elements, on the current device.
  bool (*has_edge_terms)(const EdgeTerms&, DType type, int64_t dim);
  const EdgeTermLimits& edge_term_limits;
  void (*gather_rows)(const GatherRowsArgs&);
  // Raises unless indptr rises from 0 to num_edges. Fails asynchronously if an error would need a synchronisation.
  void (*check_offsets)(const Topology&);
};

}  // namespace halfgnn
