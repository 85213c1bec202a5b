// The operators that both back ends share: checks, allocation, choice of kernel. Schemas are in csrc/library.cpp.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "checks.h"

namespace halfgnn {

std::tuple<Tensor, Tensor> gspmm(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids,
                                 c10::string_view op_name, c10::string_view reduce_name, const OptionalTensor& lhs_data,
                                 const OptionalTensor& rhs_data, std::optional<at::ScalarType> out_dtype);
std::tuple<Tensor, Tensor> gspmm_backward(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids,
                                          const Tensor& in_indptr, bool by_src, c10::string_view op_name,
                                          c10::string_view reduce_name, const Tensor& grad_out,
                                          const OptionalTensor& lhs_data, const OptionalTensor& rhs_data,
                                          const OptionalTensor& arg_data, at::IntArrayRef lhs_shape,
                                          at::IntArrayRef rhs_shape, at::ScalarType lhs_dtype, at::ScalarType rhs_dtype,
                                          bool need_lhs, bool need_rhs);
Tensor gsddmm(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, c10::string_view op_name,
              const OptionalTensor& lhs_data, const OptionalTensor& rhs_data, c10::string_view lhs_target,
              c10::string_view rhs_target, std::optional<at::ScalarType> out_dtype);
Tensor gsddmm_backward(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, bool by_src,
                       c10::string_view op_name, c10::string_view side_name, const Tensor& grad_out,
                       const OptionalTensor& lhs_data, const OptionalTensor& rhs_data, c10::string_view lhs_target,
                       c10::string_view rhs_target, at::IntArrayRef lhs_shape, at::IntArrayRef rhs_shape,
                       at::ScalarType dtype);
Tensor edge_softmax(const Tensor& indptr, const OptionalTensor& edge_ids, const Tensor& logits);
Tensor edge_softmax_backward(const Tensor& indptr, const OptionalTensor& edge_ids, const Tensor& out,
                             const Tensor& grad);
std::tuple<Tensor, Tensor> segment_reduce(const Tensor& offsets, const Tensor& value_data,
                                          c10::string_view reduce_name);
Tensor segment_reduce_backward(const Tensor& offsets, const Tensor& grad_out, const OptionalTensor& arg_data,
                               c10::string_view reduce_name, int64_t num_rows);
std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention(const Tensor& indptr, const Tensor& indices,
                                                         const OptionalTensor& edge_ids, const Tensor& feat,
                                                         const Tensor& attn_src, const Tensor& attn_dst,
                                                         const OptionalTensor& edge_logits, double negative_slope,
                                                         double dropout_p, const OptionalTensor& seed, bool save,
                                                         bool precise);
std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention_backward(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& feat,
    const Tensor& attn_src, const Tensor& attn_dst, const OptionalTensor& edge_logits, double negative_slope,
    double dropout_p, const OptionalTensor& seed, const Tensor& grad, const Tensor& out, const Tensor& lse,
    const Tensor& out_residual, const Tensor& positive, bool need_edge_logits);
std::tuple<Tensor, Tensor, Tensor> gatv2_attention(const Tensor& indptr, const Tensor& indices,
                                                   const OptionalTensor& edge_ids, const Tensor& feat_src,
                                                   const Tensor& feat_dst, const Tensor& attn, double negative_slope,
                                                   double dropout_p, const OptionalTensor& seed, bool save,
                                                   bool precise);
std::tuple<Tensor, Tensor, Tensor> gatv2_attention_backward(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& out_indptr,
    const Tensor& out_indices, const OptionalTensor& out_edge_ids, const Tensor& feat_src, const Tensor& feat_dst,
    const Tensor& attn, double negative_slope, double dropout_p, const OptionalTensor& seed, const Tensor& grad,
    const Tensor& out, const Tensor& lse, const Tensor& out_residual);
std::tuple<Tensor, Tensor, Tensor> dot_attention(const Tensor& indptr, const Tensor& indices,
                                                 const OptionalTensor& edge_ids, const Tensor& query, const Tensor& key,
                                                 const Tensor& value, double scale, double dropout_p,
                                                 const OptionalTensor& seed, bool save, bool precise);
std::tuple<Tensor, Tensor, Tensor> dot_attention_backward(const Tensor& indptr, const Tensor& indices,
                                                          const OptionalTensor& edge_ids, const Tensor& out_indptr,
                                                          const Tensor& out_indices, const OptionalTensor& out_edge_ids,
                                                          const Tensor& query, const Tensor& key, const Tensor& value,
                                                          double scale, double dropout_p, const OptionalTensor& seed,
                                                          const Tensor& grad, const Tensor& out, const Tensor& lse,
                                                          const Tensor& out_residual);
void gather_rows(const Tensor& table, const Tensor& ids, Tensor& out, int64_t num_threads);

// Makes all others kernels of one dispatch key. Building adjacencies is each back end's own.
inline void register_operators(torch::Library& m) {
  m.impl("gspmm", &gspmm);
  m.impl("gspmm_backward", &gspmm_backward);
  m.impl("gsddmm", &gsddmm);
  m.impl("gsddmm_backward", &gsddmm_backward);
  m.impl("edge_softmax", &edge_softmax);
  m.impl("edge_softmax_backward", &edge_softmax_backward);
  m.impl("segment_reduce", &segment_reduce);
  m.impl("segment_reduce_backward", &segment_reduce_backward);
  m.impl("gat_attention", &gat_attention);
  m.impl("gat_attention_backward", &gat_attention_backward);
  m.impl("gatv2_attention", &gatv2_attention);
  m.impl("gatv2_attention_backward", &gatv2_attention_backward);
  m.impl("dot_attention", &dot_attention);
  m.impl("dot_attention_backward", &dot_attention_backward);
  m.impl("gather_rows", &gather_rows);
}

}  // namespace halfgnn
