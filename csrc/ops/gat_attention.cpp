// gat_attention and its backward: checks, allocation.

#include "../torch/device.h"
#include "attention_checks.h"
#include "register.h"

namespace halfgnn {
namespace {

struct GatTensors {
  const Tensor &feat, &attn_src, &attn_dst;
  const OptionalTensor& edge_logits;
  double negative_slope;
  DropoutArguments dropout;
};

// Checked operands, and arguments of the kernels that point to them.
struct GatInputs {
  Feature feat, attn_src, attn_dst, edge_logits;
  GatArgs args;

  GatInputs(const Topology& topology, int64_t num_src, int64_t num_dst, const GatTensors& tensors, const Device& device)
      : feat(head_feature(tensors.feat, "feat", device)),
        attn_src(feature_of(tensors.attn_src, "attn_src", Target::kCol, device)),
        attn_dst(feature_of(tensors.attn_dst, "attn_dst", Target::kRow, device)),
        edge_logits(feature_of(tensors.edge_logits, "edge_logits", Target::kEdge, device)) {
    const int64_t heads = feat.tensor.size(1);
    if (num_src < 0) num_src = feat.tensor.size(0);
    CHECK_VALUE(feat.tensor.size(0) == num_src, "feat has shape ", feat.tensor.sizes(), "; expected ", num_src,
                " rows, one per source node");
    check_shape(attn_src, "attn_src", {num_src, heads}, "one number per source node and head");
    check_shape(attn_dst, "attn_dst", {num_dst, heads}, "one number per destination node and head");
    check_type(attn_dst, "attn_dst", attn_src, "attn_src");
    const DType logit_type = attn_src.operand.type;
    CHECK_TYPE(logit_type == feat.operand.type || (logit_type == DType::kFloat && size_of(feat.operand.type) == 2),
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
    args.negative_slope = tensors.negative_slope;
    args.dropout = dropout_of(tensors.dropout, device);
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention(const Tensor& indptr, const Tensor& indices,
                                                         const OptionalTensor& edge_ids, const Tensor& feat,
                                                         const Tensor& attn_src, const Tensor& attn_dst,
                                                         const OptionalTensor& edge_logits, double negative_slope,
                                                         double dropout_p, const OptionalTensor& seed, bool save,
                                                         bool precise, bool short_rows,
                                                         const OptionalTensor& schedule) {
  const Device device = indptr.device();
  const DeviceGuard guard(device);
  Topology topology = AdjacencyTensors{indptr, indices, edge_ids, short_rows}.topology();
  put_schedule(topology, schedule, indptr);
  GatInputs in(topology, -1, topology.num_rows,
               {feat, attn_src, attn_dst, edge_logits, negative_slope, {dropout_p, seed}}, device);
  auto [out, lse, out_residual] = ForwardResults(topology, in.feat, false, save, precise);
  Tensor positive =
      save ? new_result(out.sizes(), in.feat.tensor.options()) : new_result({0}, in.feat.tensor.options());
  if (is_empty(topology, in.feat)) {
    for (Tensor* tensor : {&out, &out_residual, &lse, &positive}) tensor->zero_();
  } else {
    in.args.num_cols = in.feat.tensor.size(0);
    in.args.out = {pointer_to(out), pointer_to(out_residual)};
    in.args.lse = pointer_to(lse);
    in.args.positive = pointer_to(positive);
    backend_of(device).gat_attention(in.args);
  }
  return {out, lse, out_residual, positive};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention_backward(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& feat,
    const Tensor& attn_src, const Tensor& attn_dst, const OptionalTensor& edge_logits, double negative_slope,
    double dropout_p, const OptionalTensor& seed, const Tensor& grad, const Tensor& out, const Tensor& lse,
    const Tensor& out_residual, const Tensor& positive, bool need_edge_logits, bool short_rows,
    const OptionalTensor& schedule) {
  const Device device = indptr.device();
  const DeviceGuard guard(device);
  Topology topology = AdjacencyTensors{indptr, indices, edge_ids, short_rows}.topology();
  put_schedule(topology, schedule, indptr);
  const int64_t num_dst = out.dim() > 0 ? out.size(0) : 0;
  GatInputs in(topology, topology.num_rows, num_dst,
               {feat, attn_src, attn_dst, edge_logits, negative_slope, {dropout_p, seed}}, device);
  CHECK_VALUE(!need_edge_logits || in.edge_logits.defined(), "need_edge_logits is set, but edge_logits is None");
  const Feature upstream = like(grad, "grad", num_dst, in.feat, "feat", "one row per destination node");
  const Saved saved_out(out, out_residual, "out", "out_residual", num_dst, in.feat, "feat");
  const Feature saved_positive = like(positive, "positive", num_dst, in.feat, "feat", "one row per destination node");
  const Feature saved_lse = statistic_of(lse, "lse", num_dst, in.feat);
  Tensor grad_feat = result_like(in.feat), grad_src = result_like(in.attn_src), grad_dst = result_like(in.attn_dst);
  Tensor grad_edge = need_edge_logits ? result_like(in.edge_logits) : empty({0}, in.attn_src.tensor.options());
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

}  // namespace

void register_gat_attention(Library& m) {
  m.impl<&gat_attention>("gat_attention");
  m.impl<&gat_attention_backward>("gat_attention_backward");
}

}  // namespace halfgnn
