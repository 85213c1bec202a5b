// gat_attention, gatv2_attention, dot_attention and their backwards: checks, allocation.

#include <c10/core/DeviceGuard.h>

#include "attention_inputs.h"
#include "register.h"

namespace halfgnn {
namespace {

// ---- GAT ---------------------------------------------------------------------------------------------------------

struct GatInputs {
  Feature feat, attn_src, attn_dst, edge_logits;
  GatArgs args;

  GatInputs(const Topology& topology, const at::Device& device, int64_t num_src, int64_t num_dst,
            const Tensor& feat_data, const Tensor& src_data, const Tensor& dst_data, const OptionalTensor& edge_data,
            double negative_slope, double dropout_p, const OptionalTensor& seed)
      : feat(head_feature(feat_data, "feat", device)),
        attn_src(feature_of(src_data, "attn_src", Target::kCol, device)),
        attn_dst(feature_of(dst_data, "attn_dst", Target::kRow, device)),
        edge_logits(feature_of(edge_data, "edge_logits", Target::kEdge, device)) {
    const int64_t heads = feat.tensor.size(1);
    if (num_src < 0) num_src = feat.tensor.size(0);
    TORCH_CHECK_VALUE(feat.tensor.size(0) == num_src, "feat has shape ", feat.tensor.sizes(), "; expected ", num_src,
                      " rows, one per source node");
    check_shape(attn_src, "attn_src", {num_src, heads}, "one number per source node and head");
    check_shape(attn_dst, "attn_dst", {num_dst, heads}, "one number per destination node and head");
    check_type(attn_dst, "attn_dst", attn_src, "attn_src");
    const DType logit_type = attn_src.operand.type;
    TORCH_CHECK_TYPE(
        logit_type == feat.operand.type || (logit_type == DType::kFloat && size_of(feat.operand.type) == 2),
        "attn_src has dtype ", dtype_name(attn_src.tensor.scalar_type()), "; expected that of feat, ",
        dtype_name(feat.tensor.scalar_type()), ", or torch.float32 with half features");
    if (edge_logits.defined()) {
      check_shape(edge_logits, "edge_logits", {topology.num_edges, heads}, "one number per edge and head");
      check_type(edge_logits, "edge_logits", attn_src, "attn_src");
    }
    args.topology = topology;
    args.heads = heads;
    args.dim = feat.tensor.size(2);
    args.type = feat.operand.type;
    args.feat = feat.operand.data;
    args.logit_type = logit_type;
    args.attn_src = attn_src.operand.data;
    args.attn_dst = attn_dst.operand.data;
    args.edge_logits = edge_logits.operand.data;
    args.negative_slope = negative_slope;
    args.dropout = dropout_of(dropout_p, seed, device);
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention(const Tensor& indptr, const Tensor& indices,
                                                         const OptionalTensor& edge_ids, const Tensor& feat,
                                                         const Tensor& attn_src, const Tensor& attn_dst,
                                                         const OptionalTensor& edge_logits, double negative_slope,
                                                         double dropout_p, const OptionalTensor& seed, bool save,
                                                         bool precise, bool short_rows) {
  const c10::DeviceGuard guard(indptr.device());
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  GatInputs in(topology, indptr.device(), -1, topology.num_rows, feat, attn_src, attn_dst, edge_logits, negative_slope,
               dropout_p, seed);
  const std::vector<int64_t> sizes{topology.num_rows, in.args.heads, in.args.dim};
  const std::vector<int64_t> per_head =
      save ? std::vector<int64_t>{topology.num_rows, in.args.heads} : std::vector<int64_t>{0};
  PreciseTensor out(sizes, in.feat, true, save && precise);
  Tensor lse = new_result(per_head, statistics_options(in.feat));
  Tensor positive = new_result(save ? sizes : std::vector<int64_t>{0}, in.feat.tensor.options());
  if (is_empty(topology, in.feat)) {
    for (Tensor* tensor : {&out.value, &out.residual, &lse, &positive}) tensor->zero_();
  } else {
    in.args.num_cols = in.feat.tensor.size(0);
    in.args.out = out.args();
    in.args.lse = save ? lse.mutable_data_ptr() : nullptr;
    in.args.positive = save ? positive.mutable_data_ptr() : nullptr;
    backend_of(indptr.device()).gat_attention(in.args);
  }
  return {out.value, lse, out.residual, positive};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention_backward(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& feat,
    const Tensor& attn_src, const Tensor& attn_dst, const OptionalTensor& edge_logits, double negative_slope,
    double dropout_p, const OptionalTensor& seed, const Tensor& grad, const Tensor& out, const Tensor& lse,
    const Tensor& out_residual, const Tensor& positive, bool need_edge_logits, bool short_rows) {
  const c10::DeviceGuard guard(indptr.device());
  const at::Device device = indptr.device();
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  const int64_t num_dst = out.dim() > 0 ? out.size(0) : 0;
  GatInputs in(topology, device, topology.num_rows, num_dst, feat, attn_src, attn_dst, edge_logits, negative_slope,
               dropout_p, seed);
  TORCH_CHECK_VALUE(!need_edge_logits || in.edge_logits.defined(), "need_edge_logits is set, but edge_logits is None");
  const Feature upstream = like(grad, "grad", num_dst, in.feat, "feat", "one row per destination node");
  const Saved saved_out(out, out_residual, "out", "out_residual", num_dst, in.feat, "feat");
  const Feature saved_positive = like(positive, "positive", num_dst, in.feat, "feat", "one row per destination node");
  const Feature saved_lse = statistic_of(lse, "lse", num_dst, in.feat);
  const auto empty_like = [](const Feature& f) { return new_result(f.tensor.sizes(), f.tensor.options()); };
  Tensor grad_feat = empty_like(in.feat), grad_src = empty_like(in.attn_src), grad_dst = empty_like(in.attn_dst);
  Tensor grad_edge = need_edge_logits ? empty_like(in.edge_logits) : at::empty({0}, in.attn_src.tensor.options());
  if (is_empty(topology, in.feat)) {
    for (Tensor* tensor : {&grad_feat, &grad_src, &grad_dst, &grad_edge}) tensor->zero_();
    return {grad_feat, grad_src, grad_dst, grad_edge};
  }
  in.args.num_cols = num_dst;
  in.args.grad = upstream.operand.data;
  in.args.out = saved_out.args();
  in.args.positive = writable(saved_positive);
  in.args.lse = writable(saved_lse);
  in.args.grad_feat = grad_feat.mutable_data_ptr();
  in.args.grad_attn_src = grad_src.mutable_data_ptr();
  in.args.grad_attn_dst = grad_dst.mutable_data_ptr();
  in.args.grad_edge_logits = need_edge_logits ? grad_edge.mutable_data_ptr() : nullptr;
  backend_of(device).gat_attention_backward(in.args);
  return {grad_feat, grad_src, grad_dst, grad_edge};
}

// ---- GATv2 -------------------------------------------------------------------------------------------------------

std::tuple<Tensor, Tensor, Tensor> gatv2_attention(const Tensor& indptr, const Tensor& indices,
                                                   const OptionalTensor& edge_ids, const Tensor& feat_src,
                                                   const Tensor& feat_dst, const Tensor& attn, double negative_slope,
                                                   double dropout_p, const OptionalTensor& seed, bool save,
                                                   bool precise, bool short_rows) {
  const c10::DeviceGuard guard(indptr.device());
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  Gatv2Inputs in(topology, indptr.device(), feat_src, feat_dst, attn, negative_slope, dropout_p, seed);
  return run_forward(backend_of(indptr.device()).pair_attention, in.args, in.src, save, precise);
}

std::tuple<Tensor, Tensor, Tensor> gatv2_attention_backward(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& out_indptr,
    const Tensor& out_indices, const OptionalTensor& out_edge_ids, const Tensor& feat_src, const Tensor& feat_dst,
    const Tensor& attn, double negative_slope, double dropout_p, const OptionalTensor& seed, const Tensor& grad,
    const Tensor& out, const Tensor& lse, const Tensor& out_residual, bool short_rows, bool out_short_rows) {
  const c10::DeviceGuard guard(indptr.device());
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  Gatv2Inputs in(topology, indptr.device(), feat_src, feat_dst, attn, negative_slope, dropout_p, seed);
  in.args.by_src = other_side(out_indptr, out_indices, out_edge_ids, out_short_rows, topology, in.src.tensor.size(0));
  return run_backward(backend_of(indptr.device()).pair_attention_backward, in.args, in.src, grad, out, lse,
                      out_residual, {in.src, in.dst, in.attn},
                      {&PairAttentionArgs::grad_key, &PairAttentionArgs::grad_query, &PairAttentionArgs::grad_attn});
}

// ---- dot ---------------------------------------------------------------------------------------------------------

std::tuple<Tensor, Tensor, Tensor> dot_attention(const Tensor& indptr, const Tensor& indices,
                                                 const OptionalTensor& edge_ids, const Tensor& query, const Tensor& key,
                                                 const Tensor& value, double scale, double dropout_p,
                                                 const OptionalTensor& seed, bool save, bool precise, bool short_rows) {
  const c10::DeviceGuard guard(indptr.device());
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  DotInputs in(topology, indptr.device(), query, key, value, scale, dropout_p, seed);
  return run_forward(backend_of(indptr.device()).pair_attention, in.args, in.key, save, precise);
}

std::tuple<Tensor, Tensor, Tensor> dot_attention_backward(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& out_indptr,
    const Tensor& out_indices, const OptionalTensor& out_edge_ids, const Tensor& query, const Tensor& key,
    const Tensor& value, double scale, double dropout_p, const OptionalTensor& seed, const Tensor& grad,
    const Tensor& out, const Tensor& lse, const Tensor& out_residual, bool short_rows, bool out_short_rows) {
  const c10::DeviceGuard guard(indptr.device());
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  DotInputs in(topology, indptr.device(), query, key, value, scale, dropout_p, seed);
  in.args.by_src = other_side(out_indptr, out_indices, out_edge_ids, out_short_rows, topology, in.key.tensor.size(0));
  return run_backward(backend_of(indptr.device()).pair_attention_backward, in.args, in.key, grad, out, lse,
                      out_residual, {in.query, in.key, in.value},
                      {&PairAttentionArgs::grad_query, &PairAttentionArgs::grad_key, &PairAttentionArgs::grad_value});
}

}  // namespace

void register_attention(torch::Library& m) {
  m.impl("gat_attention", &gat_attention);
  m.impl("gat_attention_backward", &gat_attention_backward);
  m.impl("gatv2_attention", &gatv2_attention);
  m.impl("gatv2_attention_backward", &gatv2_attention_backward);
  m.impl("dot_attention", &dot_attention);
  m.impl("dot_attention_backward", &dot_attention_backward);
}

}  // namespace halfgnn
