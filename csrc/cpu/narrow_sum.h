// Sums of products of two rows of a few values, as sums of as many heads of one value.
//
// The general kernels take any operator and broadcast, and 20 ns per edge. Products of narrow rows are common: weights
// of edges that are scaled by the degrees of both ends, and features of one column.
#pragma once

#include <optional>

#include "../core/arguments.h"
#include "kernels/choose.h"

namespace halfgnn::cpu {

inline bool is_elementwise(const Broadcast& b) {
  return b.outer == 1 && b.lhs_step == 1 && b.rhs_step == 1 && b.out_step == 1;
}

// out[row] = the sum over its edges of x * y: of which one is of the edges, and the other of their columns or of the
// edges too. Nothing if no kernel of narrow rows takes it.
inline std::optional<SpmmSumArgs> as_narrow_sum(const Topology& topology, const Broadcast& broadcast, const Operand& x,
                                                const Operand& y) {
  const bool x_is_weight = x.target == Target::kEdge;
  const Operand &weight = x_is_weight ? x : y, &feat = x_is_weight ? y : x;
  if (weight.target != Target::kEdge || feat.target == Target::kRow || !is_elementwise(broadcast)) return {};
  if (weight.type == DType::kDouble || !kernels().has_sum_kernel(feat.type, broadcast.inner, 1)) return {};
  SpmmSumArgs args;
  args.topology = topology;
  args.feat = feat.data;
  args.feat_rows = feat.rows;
  args.feat_by_edge = feat.target == Target::kEdge;
  args.type = feat.type;
  args.weight = weight.data;
  args.weight_type = weight.type;
  args.heads = broadcast.inner;
  args.dim = 1;
  return args;
}

inline std::optional<SpmmSumArgs> as_narrow_sum(const SpmmArgs& args) {
  if (args.op != Op::kMul || args.arg) return {};
  std::optional<SpmmSumArgs> sum = as_narrow_sum(args.topology, args.broadcast, args.lhs, args.rhs);
  if (!sum) return {};
  sum->divide_by_degree = args.reduce == Reduce::kMean;
  sum->out = args.out;
  sum->out_type = args.out_type;
  return sum;
}

// The gradient of a side of a product that is at the rows, lhs or rhs. A mean is of the columns, where the gradient is.
inline std::optional<SpmmSumArgs> as_narrow_sum(const BackwardArgs& args, bool of_lhs) {
  const GradientOut& out = of_lhs ? args.grad_lhs : args.grad_rhs;
  if (args.op != Op::kMul || args.arg || !out.data || out.by_edge) return {};
  if (args.mean_indptr && args.grad.target != Target::kCol) return {};
  std::optional<SpmmSumArgs> sum =
      as_narrow_sum(args.topology, args.broadcast, args.grad, of_lhs ? args.rhs : args.lhs);
  if (!sum) return {};
  sum->mean_indptr = args.mean_indptr;
  sum->out = out.data;
  sum->out_type = out.type;
  return sum;
}

}  // namespace halfgnn::cpu
