// GATv2 and dot attention with terms of edges, and their backwards: checks, allocation.

#include <ATen/ops/constant_pad_nd.h>
#include <c10/core/DeviceGuard.h>

#include "attention_inputs.h"
#include "register.h"

namespace halfgnn {
namespace {

// Rows as the back end's kernels of edge terms want them: with multiples of `elements` in their last dimension, of
// `dim`, at such addresses. Zeros behind them add nothing to a logit, and what is added up there is cut off.
class Fitted {
 public:
  // Rows of heads, as those of `feat`, and rows of columns, as those of `edge_feat`.
  static Fitted heads(const Tensor& feat) {
    const int64_t bytes = backend_of(feat.device()).edge_term_limits.row_bytes;
    return {feat.dim() == 3 ? feat.size(2) : 0, std::max<int64_t>(bytes / feat.element_size(), 1)};
  }
  static Fitted columns(const OptionalTensor& edge_feat) {
    if (!edge_feat || edge_feat->dim() != 2) return {0, 1};
    return {edge_feat->size(1), backend_of(edge_feat->device()).edge_term_limits.row_columns};
  }

  Tensor operator()(const Tensor& rows) const {
    if (elements_ == 1 || rows.dim() < 2 || rows.size(-1) != dim_) return rows;
    if (padding_ > 0) return at::constant_pad_nd(rows, {0, padding_});
    const Tensor contiguous = rows.contiguous();
    const auto bytes = static_cast<uintptr_t>(elements_ * rows.element_size());
    return reinterpret_cast<uintptr_t>(contiguous.const_data_ptr()) % bytes == 0 ? contiguous : contiguous.clone();
  }
  OptionalTensor operator()(const OptionalTensor& rows) const {
    return rows ? OptionalTensor((*this)(*rows)) : std::nullopt;
  }
  // The weight (heads, dim, columns) of columns: rows of heads, of which each element has a row of columns.
  OptionalTensor with_columns(const Fitted& columns, const OptionalTensor& weight) const {
    if (!weight || weight->dim() != 3 || weight->size(1) != dim_ || padding_ == 0) return columns(weight);
    return columns(at::constant_pad_nd(*weight, {0, 0, 0, padding_}));
  }
  Tensor cut_with_columns(const Fitted& columns, const Tensor& weight) const {
    return columns.cut(padding_ == 0 || weight.dim() != 3 ? weight : weight.narrow(1, 0, dim_).contiguous());
  }
  // Of a result in rows that were fitted; empty if it was not wanted.
  Tensor cut(const Tensor& result) const {
    return padding_ == 0 || result.dim() < 2 ? result : result.narrow(-1, 0, dim_).contiguous();
  }

 private:
  Fitted(int64_t dim, int64_t elements)
      : dim_(dim), elements_(elements), padding_((elements - dim % elements) % elements) {}

  int64_t dim_, elements_, padding_;
};

// What edges add (EdgeTerms). `feat`: a feature of nodes, whose heads, dim and type the terms share.
struct EdgeInputs {
  Feature bias, key, value, edge_feat, query;
  EdgeTerms terms;

  EdgeInputs(const Topology& topology, const Feature& feat, const Fitted& fit, const OptionalTensor& bias_data,
             const OptionalTensor& key_data, const OptionalTensor& value_data, bool key_is_value,
             const OptionalTensor& feat_data, const OptionalTensor& query_data)
      : bias(feature_of(bias_data, "edge_bias", Target::kEdge, feat.tensor.device())),
        key(rows_of_edges(topology, feat, fit, key_data, "edge_key")),
        value(rows_of_edges(topology, feat, fit, value_data, "edge_value")),
        edge_feat(feature_of(feat_data, "edge_feat", Target::kEdge, feat.tensor.device())),
        query(feature_of(query_data, "edge_query", Target::kRow, feat.tensor.device())) {
    const int64_t heads = feat.tensor.size(1);
    if (bias.defined()) {
      check_shape(bias, "edge_bias", {topology.num_edges, heads}, "one number per edge and head");
      TORCH_CHECK_TYPE(bias.operand.type == feat.operand.type ||
                           (bias.operand.type == DType::kFloat && size_of(feat.operand.type) == 2),
                       "edge_bias has dtype ", dtype_name(bias.tensor.scalar_type()),
                       "; expected that of the features, ", dtype_name(feat.tensor.scalar_type()),
                       ", or torch.float32 with half features");
    }
    if (edge_feat.defined()) {
      TORCH_CHECK_VALUE(edge_feat.tensor.dim() == 2 && edge_feat.tensor.size(0) == topology.num_edges,
                        "edge_feat has shape ", edge_feat.tensor.sizes(), "; expected (", topology.num_edges,
                        ", columns), one row per edge");
      TORCH_CHECK_VALUE(edge_feat.tensor.size(1) > 0, "edge_feat has shape ", edge_feat.tensor.sizes(),
                        "; expected at least one column");
      check_type(edge_feat, "edge_feat", feat, "the features");
      terms.feat_dim = edge_feat.tensor.size(1);
    }
    if (query.defined()) {
      TORCH_CHECK_VALUE(edge_feat.defined(), "edge_query is given, but edge_feat is None");
      check_of_nodes(query, "edge_query", topology, feat);
    }
    TORCH_CHECK_VALUE(!key_is_value || (key.defined() && !value.defined()),
                      "edge_key_is_value is set; expected edge_key, and None for edge_value");
    terms.bias = bias.operand.data;
    terms.bias_type = bias.defined() ? bias.operand.type : DType::kFloat;
    terms.key = key.operand.data;
    terms.value = key_is_value ? key.operand.data : value.operand.data;
    terms.feat = edge_feat.operand.data;
    terms.query = query.operand.data;
  }

  // To be called once all terms are set.
  void check_kernels(const Feature& feat) const {
    const auto& backend = backend_of(feat.tensor.device());
    TORCH_CHECK_NOT_IMPLEMENTED(backend.has_edge_terms(terms, feat.operand.type, feat.tensor.size(2)),
                                "there are no kernels for these terms of edges and heads of ", feat.tensor.size(2),
                                " elements on ", feat.tensor.device());
  }

  // A tensor (num_dst, heads, feat_dim) of fp32, or fp64 with fp64 features.
  void check_of_nodes(const Feature& numbers, const char* name, const Topology& topology, const Feature& feat) const {
    check_shape(numbers, name, {topology.num_rows, feat.tensor.size(1), terms.feat_dim},
                "(destination nodes, heads, columns of edge_feat)");
    const auto type = c10::typeMetaToScalarType(statistics_options(feat).dtype());
    TORCH_CHECK_TYPE(numbers.tensor.scalar_type() == type, name, " has dtype ",
                     dtype_name(numbers.tensor.scalar_type()), "; expected ", dtype_name(type));
  }
  std::vector<int64_t> sizes_of_nodes(const Topology& topology, const Feature& feat) const {
    return {topology.num_rows, feat.tensor.size(1), terms.feat_dim};
  }

 private:
  static Feature rows_of_edges(const Topology& topology, const Feature& feat, const Fitted& fit,
                               const OptionalTensor& data, const char* name) {
    return data ? like(fit(*data), name, topology.num_edges, feat, "the features", "one row per edge") : Feature{};
  }
};

// A gradient that is empty unless it is wanted.
Tensor wanted_gradient(const Feature& of, const char* name, bool wanted, const Feature& feat) {
  TORCH_CHECK_VALUE(!wanted || of.defined(), "need_", name, " is set, but ", name, " is None");
  return wanted ? new_result(of.tensor.sizes(), of.tensor.options()) : at::empty({0}, feat.tensor.options());
}
void* data_of(Tensor& tensor) { return tensor.numel() == 0 ? nullptr : tensor.mutable_data_ptr(); }

std::tuple<Tensor, Tensor, Tensor, Tensor> dot_attention_edges(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& query, const Tensor& key,
    const Tensor& value, const OptionalTensor& edge_bias, const OptionalTensor& edge_key,
    const OptionalTensor& edge_value, bool edge_key_is_value, const OptionalTensor& edge_feat,
    const OptionalTensor& edge_query, double scale, double dropout_p, const OptionalTensor& seed, bool need_edge_out,
    bool save, bool precise, bool short_rows) {
  const c10::DeviceGuard guard(indptr.device());
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  const auto fit = Fitted::heads(key), columns = Fitted::columns(edge_feat);
  DotInputs in(topology, indptr.device(), fit(query), fit(key), fit(value), scale, dropout_p, seed);
  EdgeInputs edges(topology, in.key, fit, edge_bias, edge_key, edge_value, edge_key_is_value, columns(edge_feat),
                   columns(edge_query));
  edges.check_kernels(in.key);
  TORCH_CHECK_VALUE(!need_edge_out || edges.edge_feat.defined(), "need_edge_out is set, but edge_feat is None");
  in.args.edge = edges.terms;
  const auto options = in.key.tensor.options(), wide = statistics_options(in.key);
  const std::vector<int64_t> sizes{topology.num_rows, in.args.heads, in.args.dim};
  const std::vector<int64_t> empty{0}, per_head{topology.num_rows, in.args.heads};
  const bool keep = save && precise && !need_edge_out && size_of(in.args.type) == 2;
  Tensor out = new_result(sizes, need_edge_out ? wide : options), residual = new_result(keep ? sizes : empty, options);
  Tensor lse = new_result(save ? per_head : empty, wide);
  Tensor edge_out = new_result(need_edge_out ? edges.sizes_of_nodes(topology, in.key) : empty, wide);
  if (is_empty(topology, in.key)) {
    for (Tensor* tensor : {&out, &lse, &residual, &edge_out}) tensor->zero_();
    return {fit.cut(out), lse, fit.cut(residual), columns.cut(edge_out)};
  }
  if (need_edge_out) {
    in.args.edge.wide_out = data_of(out);
    in.args.edge.out = edge_out.mutable_data_ptr();
  } else {
    in.args.out = {data_of(out), data_of(residual)};
  }
  in.args.lse = data_of(lse);
  backend_of(indptr.device()).pair_attention(in.args);
  return {fit.cut(out), lse, fit.cut(residual), columns.cut(edge_out)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> dot_attention_edges_backward(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& out_indptr,
    const Tensor& out_indices, const OptionalTensor& out_edge_ids, const Tensor& query, const Tensor& key,
    const Tensor& value, const OptionalTensor& edge_bias, const OptionalTensor& edge_key,
    const OptionalTensor& edge_value, bool edge_key_is_value, const OptionalTensor& edge_feat,
    const OptionalTensor& edge_query, double scale, double dropout_p, const OptionalTensor& seed, const Tensor& grad,
    const OptionalTensor& grad_edge_out, const Tensor& out, const Tensor& lse, const Tensor& out_residual,
    bool need_edge_bias, bool need_edge_key, bool need_edge_value, bool need_edge_feat, bool short_rows,
    bool out_short_rows) {
  const c10::DeviceGuard guard(indptr.device());
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  const auto fit = Fitted::heads(key), columns = Fitted::columns(edge_feat);
  DotInputs in(topology, indptr.device(), fit(query), fit(key), fit(value), scale, dropout_p, seed);
  EdgeInputs edges(topology, in.key, fit, edge_bias, edge_key, edge_value, edge_key_is_value, columns(edge_feat),
                   columns(edge_query));
  edges.check_kernels(in.key);
  in.args.by_src = other_side(out_indptr, out_indices, out_edge_ids, out_short_rows, topology, in.key.tensor.size(0));
  const int64_t num_dst = topology.num_rows;
  const Feature upstream = like(fit(grad), "grad", num_dst, in.key, "the features", "one row per destination node");
  const Saved saved(fit(out), fit(out_residual), "out", "out_residual", num_dst, in.key, "the features");
  const Feature saved_lse = statistic_of(lse, "lse", num_dst, in.key);
  const Feature edge_upstream = feature_of(columns(grad_edge_out), "grad_edge_out", Target::kRow, indptr.device());
  if (edge_upstream.defined()) edges.check_of_nodes(edge_upstream, "grad_edge_out", topology, in.key);

  const auto result_like = [](const Feature& x) { return new_result(x.tensor.sizes(), x.tensor.options()); };
  const auto wide = statistics_options(in.key);
  const bool has_query = edges.query.defined();
  Tensor grad_query = has_query ? new_result(in.query.tensor.sizes(), wide) : result_like(in.query);
  Tensor grad_key = result_like(in.key), grad_value = result_like(in.value);
  Tensor of_bias = wanted_gradient(edges.bias, "edge_bias", need_edge_bias, in.key);
  Tensor of_key = wanted_gradient(edges.key, "edge_key", need_edge_key, in.key);
  Tensor of_value = wanted_gradient(edges.value, "edge_value", need_edge_value, in.key);
  Tensor of_feat = wanted_gradient(edges.edge_feat, "edge_feat", need_edge_feat, in.key);
  Tensor of_query = has_query ? result_like(edges.query) : at::empty({0}, wide);
  if (is_empty(topology, in.key)) {
    for (Tensor* tensor : {&grad_query, &grad_key, &grad_value, &of_bias, &of_key, &of_value, &of_feat, &of_query})
      tensor->zero_();
  } else {
    in.args.edge = edges.terms;
    in.args.edge.grad_out = edge_upstream.operand.data;
    in.args.edge.grad_bias = data_of(of_bias);
    in.args.edge.grad_key = data_of(of_key);
    in.args.edge.grad_value = data_of(of_value);
    in.args.edge.grad_feat = data_of(of_feat);
    in.args.edge.grad_query = data_of(of_query);
    in.args.grad = upstream.operand.data;
    in.args.out = saved.args();
    in.args.lse = writable(saved_lse);
    in.args.grad_query = grad_query.mutable_data_ptr();
    in.args.grad_key = grad_key.mutable_data_ptr();
    in.args.grad_value = grad_value.mutable_data_ptr();
    backend_of(indptr.device()).pair_attention_backward(in.args);
  }
  return {fit.cut(grad_query), fit.cut(grad_key), fit.cut(grad_value),  of_bias,
          fit.cut(of_key),     fit.cut(of_value), columns.cut(of_feat), columns.cut(of_query)};
}

// ---- GATv2 -------------------------------------------------------------------------------------------------------

// The weight (heads, dim, feat_dim) of edge_feat; undefined if there is none.
Feature weight_of(const OptionalTensor& data, const EdgeInputs& edges, const Feature& feat) {
  const Feature weight = feature_of(data, "edge_weight", Target::kRow, feat.tensor.device());
  TORCH_CHECK_VALUE(weight.defined() == edges.edge_feat.defined(), "edge_weight is ",
                    weight.defined() ? "given" : "None", ", but edge_feat is ",
                    edges.edge_feat.defined() ? "given" : "None");
  if (!weight.defined()) return weight;
  TORCH_CHECK_VALUE(!edges.key.defined(), "edge_key and edge_feat are given; expected one of them");
  check_shape(weight, "edge_weight", {feat.tensor.size(1), feat.tensor.size(2), edges.terms.feat_dim},
              "(heads, dim, columns of edge_feat)");
  check_type(weight, "edge_weight", feat, "the features");
  return weight;
}

std::tuple<Tensor, Tensor, Tensor> gatv2_attention_edges(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& feat_src,
    const Tensor& feat_dst, const Tensor& attn, const OptionalTensor& edge_bias, const OptionalTensor& edge_key,
    const OptionalTensor& edge_feat, const OptionalTensor& edge_weight, double negative_slope, double dropout_p,
    const OptionalTensor& seed, bool save, bool precise, bool short_rows) {
  const c10::DeviceGuard guard(indptr.device());
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  const auto fit = Fitted::heads(feat_src), columns = Fitted::columns(edge_feat);
  Gatv2Inputs in(topology, indptr.device(), fit(feat_src), fit(feat_dst), fit(attn), negative_slope, dropout_p, seed);
  EdgeInputs edges(topology, in.src, fit, edge_bias, edge_key, std::nullopt, false, columns(edge_feat), std::nullopt);
  const Feature weight = weight_of(fit.with_columns(columns, edge_weight), edges, in.src);
  edges.terms.weight = weight.operand.data;
  edges.check_kernels(in.src);
  in.args.edge = edges.terms;
  const auto [out, lse, residual] =
      run_forward(backend_of(indptr.device()).pair_attention, in.args, in.src, save, precise);
  return {fit.cut(out), lse, fit.cut(residual)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> gatv2_attention_edges_backward(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& out_indptr,
    const Tensor& out_indices, const OptionalTensor& out_edge_ids, const Tensor& feat_src, const Tensor& feat_dst,
    const Tensor& attn, const OptionalTensor& edge_bias, const OptionalTensor& edge_key,
    const OptionalTensor& edge_feat, const OptionalTensor& edge_weight, double negative_slope, double dropout_p,
    const OptionalTensor& seed, const Tensor& grad, const Tensor& out, const Tensor& lse, const Tensor& out_residual,
    bool need_edge_bias, bool need_edge_key, bool need_edge_feat, bool need_edge_weight, bool short_rows,
    bool out_short_rows) {
  const c10::DeviceGuard guard(indptr.device());
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  const auto fit = Fitted::heads(feat_src), columns = Fitted::columns(edge_feat);
  Gatv2Inputs in(topology, indptr.device(), fit(feat_src), fit(feat_dst), fit(attn), negative_slope, dropout_p, seed);
  EdgeInputs edges(topology, in.src, fit, edge_bias, edge_key, std::nullopt, false, columns(edge_feat), std::nullopt);
  const Feature weight = weight_of(fit.with_columns(columns, edge_weight), edges, in.src);
  edges.terms.weight = weight.operand.data;
  edges.check_kernels(in.src);
  in.args.by_src = other_side(out_indptr, out_indices, out_edge_ids, out_short_rows, topology, in.src.tensor.size(0));
  Tensor of_bias = wanted_gradient(edges.bias, "edge_bias", need_edge_bias, in.src);
  Tensor of_key = wanted_gradient(edges.key, "edge_key", need_edge_key, in.src);
  Tensor of_feat = wanted_gradient(edges.edge_feat, "edge_feat", need_edge_feat, in.src);
  Tensor of_weight = wanted_gradient(weight, "edge_weight", need_edge_weight, in.src);
  if (is_empty(topology, in.src))
    for (Tensor* tensor : {&of_bias, &of_key, &of_feat, &of_weight}) tensor->zero_();
  EdgeTerms& terms = in.args.edge = edges.terms;
  terms.grad_bias = data_of(of_bias);
  terms.grad_key = data_of(of_key);
  terms.grad_feat = data_of(of_feat);
  terms.grad_weight = data_of(of_weight);
  const auto [src, dst, of_attn] =
      run_backward(backend_of(indptr.device()).pair_attention_backward, in.args, in.src, fit(grad), fit(out), lse,
                   fit(out_residual), {in.src, in.dst, in.attn},
                   {&PairAttentionArgs::grad_key, &PairAttentionArgs::grad_query, &PairAttentionArgs::grad_attn});
  return {fit.cut(src),
          fit.cut(dst),
          fit.cut(of_attn),
          of_bias,
          fit.cut(of_key),
          columns.cut(of_feat),
          fit.cut_with_columns(columns, of_weight)};
}

}  // namespace

void register_attention_edges(torch::Library& m) {
  m.impl("gatv2_attention_edges", &gatv2_attention_edges);
  m.impl("gatv2_attention_edges_backward", &gatv2_attention_edges_backward);
  m.impl("dot_attention_edges", &dot_attention_edges);
  m.impl("dot_attention_edges_backward", &dot_attention_edges_backward);
}

}  // namespace halfgnn
