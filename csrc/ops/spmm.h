// gspmm and its gradient, for operators that are made of them.
#pragma once

#include <limits>

#include "checks.h"

namespace halfgnn {

std::tuple<Tensor, Tensor> gspmm(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids,
                                 string_view op_name, string_view reduce_name, const OptionalTensor& lhs_data,
                                 const OptionalTensor& rhs_data, std::optional<ScalarType> out_dtype, bool short_rows,
                                 bool save, const OptionalTensor& schedule = std::nullopt);

std::tuple<Tensor, Tensor> gspmm_backward(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& in_indptr, bool by_src,
    string_view op_name, string_view reduce_name, const Tensor& grad_out, const OptionalTensor& lhs_data,
    const OptionalTensor& rhs_data, const OptionalTensor& arg_data, IntArrayRef lhs_shape, IntArrayRef rhs_shape,
    ScalarType lhs_dtype, ScalarType rhs_dtype, bool need_lhs, bool need_rhs, bool short_rows,
    const OptionalTensor& in_indices, const OptionalTensor& in_edge_ids, const OptionalTensor& schedule = std::nullopt);

// Of the ids of winners: 32 bits where all edges have such ids. Messages of operators that compute something keep
// theirs in the type of the topology.
inline ScalarType winner_type(const Topology& topology) {
  return topology.is_int64 && topology.num_edges > std::numeric_limits<int32_t>::max() ? ScalarType::Long
                                                                                       : ScalarType::Int;
}

// The maximum or minimum of copies of a whole operand, and the ids of the winners unless arg is empty. Returns false if
// the back end has no kernel for it.
inline bool copy_extremum(const Backend& backend, const Topology& topology, Reduce reduce, const Operand& feat,
                          Tensor& out, Tensor& arg) {
  if (!backend.reduces_one_extreme || !is_argument_reduce(reduce) ||
      !backend.has_reduce_kernel(feat.type, feat.len, topology.num_edges)) {
    return false;
  }
  CopyReduceArgs args;
  args.topology = topology;
  args.feat = feat.data;
  args.feat_rows = feat.rows;
  args.feat_by_edge = feat.target == Target::kEdge;
  args.type = feat.type;
  args.dim = feat.len;
  (reduce == Reduce::kMax ? args.max : args.min) = out.mutable_data_ptr();
  if (arg.numel() > 0) (reduce == Reduce::kMax ? args.arg_max : args.arg_min) = arg.mutable_data_ptr();
  args.out_type = dtype_of(out.scalar_type(), "out");
  args.arg_is_int64 = arg.scalar_type() == ScalarType::Long;
  backend.copy_reduce(args);
  return true;
}

}  // namespace halfgnn
