// gatv2_attention, dot_attention and their backwards: checks, allocation. Both are pair attentions (core/attention.h):
// the features of GATv2's sources are its keys and values, and those of its destinations are its queries.

#include <array>

#include "../torch/device.h"
#include "aligned_rows.h"
#include "attention_checks.h"
#include "register.h"

namespace halfgnn {
namespace {

// ---- The arguments of an operator, by name. Those of GATv2 or of dot attention alone are none in the other's.

struct PairTensors {
  PairScore score;
  const Tensor &query, &key, &value;
  OptionalTensor attn;
  double factor;
  DropoutArguments dropout;
};
// What edges add.
struct EdgeTensors {
  OptionalTensor bias, key, value, feat, query, weight;
  bool key_is_value;
  OptionalTensor key_weight, value_weight;

  bool any() const { return bias || key || value || feat || query || weight || key_weight || value_weight; }
};
struct BackwardTensors {
  const Tensor &grad, &out, &lse, &out_residual;
  OptionalTensor grad_edge_out;
};
// Which terms of edges need a gradient.
struct Needs {
  bool edge_bias, edge_key, edge_value, edge_feat, edge_weight;
};

// The operands that have gradients.
enum Place {
  kQuery,
  kKey,
  kValue,
  kAttn,
  kEdgeBias,
  kEdgeKey,
  kEdgeValue,
  kEdgeFeat,
  kEdgeQuery,
  kEdgeWeight,
  kNumPlaces
};
using Gradients = std::array<Tensor, kNumPlaces>;

// ---- A call.

// Checked operands, and arguments of the kernels that point to them.
class PairCall {
 public:
  PairCall(const AdjacencyTensors& csc, const PairTensors& nodes, const EdgeTensors& edges)
      : device_(csc.indptr.device()),
        has_edges_(edges.any()),
        heads_(has_edges_ ? AlignedRows::heads(nodes.key) : AlignedRows()),
        columns_(AlignedRows::columns(edges.feat)) {
    args_.topology = csc.topology();
    set_nodes(nodes);
    if (has_edges_) set_edges(edges);
  }

  // edge_out is undefined unless it is needed.
  std::tuple<Tensor, Tensor, Tensor, Tensor> forward(bool need_edge_out, bool save, bool precise) {
    CHECK_VALUE(!need_edge_out || operands_[kEdgeFeat].defined(), "need_edge_out is set, but edge_feat is None");
    const bool is_wide = need_edge_out && !value_weight_.defined();
    auto [out, lse, out_residual] = ForwardResults(args_.topology, operands_[kKey], is_wide, save, precise);
    Tensor edge_out;
    if (need_edge_out)
      edge_out =
          new_result({args_.topology.num_rows, args_.heads, args_.edge.feat_dim}, statistics_options(operands_[kKey]));
    if (is_empty(args_.topology, operands_[kKey])) {
      for (Tensor* tensor : {&out, &lse, &out_residual}) tensor->zero_();
      if (need_edge_out) edge_out.zero_();
    } else {
      if (need_edge_out) args_.edge.out = pointer_to(edge_out);
      if (is_wide) {
        args_.edge.wide_out = pointer_to(out);
      } else {
        args_.out = {pointer_to(out), pointer_to(out_residual)};
      }
      args_.lse = pointer_to(lse);
      backend_of(device_).pair_attention(args_);
    }
    return {heads_.cut(out), lse, heads_.cut(out_residual), need_edge_out ? columns_.cut(edge_out) : edge_out};
  }

  Gradients backward(const AdjacencyTensors& csr, const BackwardTensors& saved, const Needs& needs) {
    args_.by_src = checked_csr(csr);
    const int64_t num_dst = args_.topology.num_rows;
    const Feature grad = like(heads_.align(saved.grad), "grad", num_dst, operands_[kKey], "the features",
                              "one row per destination node");
    const Saved out(heads_.align(saved.out), heads_.align(saved.out_residual), "out", "out_residual", num_dst,
                    operands_[kKey], "the features");
    const Feature lse = statistic_of(saved.lse, "lse", num_dst, operands_[kKey]);
    const Feature grad_edge_out =
        feature_of(columns_.align(saved.grad_edge_out), "grad_edge_out", Target::kRow, device_);
    if (grad_edge_out.defined()) check_of_destinations(grad_edge_out, "grad_edge_out");
    CHECK_VALUE(!grad_edge_out.defined() || !value_weight_.defined(),
                "grad_edge_out and edge_value_weight are given; expected one of them");
    const bool is_nothing = is_empty(args_.topology, operands_[kKey]);
    Gradients gradients;
    for (int i = 0; i < kNumPlaces; ++i) {
      const auto place = static_cast<Place>(i);
      Tensor& gradient = gradients[i] = new_gradient(place, is_needed(place, needs));
      if (gradient.defined()) *pointer_of(place) = pointer_to(gradient);
      if (gradient.defined() && is_nothing) gradient.zero_();
    }
    if (!is_nothing) {
      args_.grad = grad.operand.data;
      args_.out = out.args();
      args_.lse = writable(lse);
      args_.edge.grad_out = grad_edge_out.operand.data;
      backend_of(device_).pair_attention_backward(args_);
    }
    if (has_edges_)
      for (int i = 0; i < kNumPlaces; ++i)
        if (gradients[i].defined()) gradients[i] = cut(static_cast<Place>(i), gradients[i]);
    return gradients;
  }

  TensorOptions wide_options() const { return statistics_options(operands_[kKey]); }

 private:
  void set_nodes(const PairTensors& nodes) {
    const int64_t num_dst = args_.topology.num_rows;
    const bool is_dot = nodes.score == PairScore::kDot;
    const char* key_name = is_dot ? "key" : "feat_src";
    operands_[kKey] = head_feature(heads_.align(nodes.key), key_name, device_);
    operands_[kQuery] = like(heads_.align(nodes.query), is_dot ? "query" : "feat_dst", num_dst, operands_[kKey],
                             key_name, "one row per destination node");
    if (is_dot) {
      operands_[kValue] = like(heads_.align(nodes.value), "value", operands_[kKey].tensor.size(0), operands_[kKey],
                               "key", "one row per source node");
    } else {
      operands_[kAttn] = feature_of(heads_.align(nodes.attn), "attn", Target::kRow, device_);
      check_shape(operands_[kAttn], "attn", {operands_[kKey].tensor.size(1), operands_[kKey].tensor.size(2)},
                  "(heads, dim)");
      check_type(operands_[kAttn], "attn", operands_[kKey], key_name);
    }
    args_.score = nodes.score;
    args_.num_src = operands_[kKey].tensor.size(0);
    args_.heads = operands_[kKey].tensor.size(1);
    args_.dim = operands_[kKey].tensor.size(2);
    args_.type = operands_[kKey].operand.type;
    args_.query = operands_[kQuery].operand.data;
    args_.key = operands_[kKey].operand.data;
    args_.value = is_dot ? operands_[kValue].operand.data : operands_[kKey].operand.data;
    args_.attn = operands_[kAttn].operand.data;
    args_.factor = nodes.factor;
    args_.dropout = dropout_of(nodes.dropout, device_);
  }

  void set_edges(const EdgeTensors& edges) {
    operands_[kEdgeBias] = feature_of(edges.bias, "edge_bias", Target::kEdge, device_);
    operands_[kEdgeKey] = rows_of_edges(edges.key, "edge_key");
    operands_[kEdgeValue] = rows_of_edges(edges.value, "edge_value");
    operands_[kEdgeFeat] = feature_of(columns_.align(edges.feat), "edge_feat", Target::kEdge, device_);
    operands_[kEdgeQuery] = feature_of(columns_.align(edges.query), "edge_query", Target::kRow, device_);
    operands_[kEdgeWeight] =
        feature_of(heads_.align_with(columns_, edges.weight), "edge_weight", Target::kRow, device_);
    key_weight_ = feature_of(edges.key_weight, "edge_key_weight", Target::kRow, device_);
    value_weight_ = feature_of(edges.value_weight, "edge_value_weight", Target::kRow, device_);
    if (operands_[kEdgeBias].defined()) check_bias();
    if (operands_[kEdgeFeat].defined()) check_columns();
    check_weight_of_columns(key_weight_, "edge_key_weight");
    check_weight_of_columns(value_weight_, "edge_value_weight");
    CHECK_VALUE(!key_weight_.defined() || !operands_[kEdgeQuery].defined(),
                "edge_key_weight and edge_query are given; expected one of them");
    if (operands_[kEdgeQuery].defined()) {
      CHECK_VALUE(operands_[kEdgeFeat].defined(), "edge_query is given, but edge_feat is None");
      check_of_destinations(operands_[kEdgeQuery], "edge_query");
    }
    CHECK_VALUE(!edges.key_is_value || (operands_[kEdgeKey].defined() && !operands_[kEdgeValue].defined()),
                "edge_key_is_value is set; expected edge_key, and None for edge_value");
    if (args_.score == PairScore::kLeaky) check_weight();
    EdgeTerms& terms = args_.edge;
    terms.bias = operands_[kEdgeBias].operand.data;
    terms.bias_type = operands_[kEdgeBias].defined() ? operands_[kEdgeBias].operand.type : DType::kFloat;
    terms.key = operands_[kEdgeKey].operand.data;
    terms.value = edges.key_is_value ? operands_[kEdgeKey].operand.data : operands_[kEdgeValue].operand.data;
    terms.feat = operands_[kEdgeFeat].operand.data;
    terms.query = operands_[kEdgeQuery].operand.data;
    terms.weight = operands_[kEdgeWeight].operand.data;
    terms.key_weight = key_weight_.operand.data;
    terms.value_weight = value_weight_.operand.data;
    CHECK_IMPLEMENTED(backend_of(device_).has_edge_terms(terms, args_.type, args_.dim),
                      "there are no kernels for these terms of edges and heads of ", args_.dim, " elements on ",
                      device_);
  }
  Feature rows_of_edges(const OptionalTensor& rows, const char* name) const {
    if (!rows) return {};
    return like(heads_.align(*rows), name, args_.topology.num_edges, operands_[kKey], "the features",
                "one row per edge");
  }

  void check_bias() const {
    check_shape(operands_[kEdgeBias], "edge_bias", {args_.topology.num_edges, args_.heads},
                "one number per edge and head");
    const DType type = operands_[kEdgeBias].operand.type;
    CHECK_TYPE(type == args_.type || (type == DType::kFloat && size_of(args_.type) == 2), "edge_bias has dtype ",
               dtype_name(operands_[kEdgeBias].tensor.scalar_type()), "; expected that of the features, ",
               dtype_name(operands_[kKey].tensor.scalar_type()), ", or torch.float32 with half features");
  }
  void check_columns() {
    const Tensor& feat = operands_[kEdgeFeat].tensor;
    CHECK_VALUE(feat.dim() == 2 && feat.size(0) == args_.topology.num_edges, "edge_feat has shape ", feat.sizes(),
                "; expected (", args_.topology.num_edges, ", columns), one row per edge");
    CHECK_VALUE(feat.size(1) > 0, "edge_feat has shape ", feat.sizes(), "; expected at least one column");
    check_type(operands_[kEdgeFeat], "edge_feat", operands_[kKey], "the features");
    args_.edge.feat_dim = feat.size(1);
  }
  void check_weight() const {
    const auto state = [](const Feature& feature) { return feature.defined() ? "given" : "None"; };
    CHECK_VALUE(operands_[kEdgeWeight].defined() == operands_[kEdgeFeat].defined(), "edge_weight is ",
                state(operands_[kEdgeWeight]), ", but edge_feat is ", state(operands_[kEdgeFeat]));
    if (!operands_[kEdgeWeight].defined()) return;
    CHECK_VALUE(!operands_[kEdgeKey].defined(), "edge_key and edge_feat are given; expected one of them");
    check_shape(operands_[kEdgeWeight], "edge_weight", {args_.heads, args_.dim, args_.edge.feat_dim},
                "(heads, dim, columns of edge_feat)");
    check_type(operands_[kEdgeWeight], "edge_weight", operands_[kKey], "the features");
  }
  // Of dot attention, by whose kernels columns are projected.
  void check_weight_of_columns(const Feature& weight, const char* name) const {
    if (!weight.defined()) return;
    CHECK_IMPLEMENTED(backend_of(device_).edge_term_limits.head_bytes == INT64_MAX, "there are no kernels for ", name,
                      " on ", device_, ", but for edge_query");
    CHECK_VALUE(operands_[kEdgeFeat].defined(), name, " is given, but edge_feat is None");
    check_shape(weight, name, {args_.heads, args_.dim, args_.edge.feat_dim}, "(heads, dim, columns of edge_feat)");
    check_type(weight, name, operands_[kKey], "the features");
  }
  // A tensor (num_dst, heads, columns) of fp32, or fp64 with fp64 features.
  void check_of_destinations(const Feature& numbers, const char* name) const {
    check_shape(numbers, name, {args_.topology.num_rows, args_.heads, args_.edge.feat_dim},
                "(destination nodes, heads, columns of edge_feat)");
    const auto type = statistics_type(operands_[kKey]);
    CHECK_TYPE(numbers.tensor.scalar_type() == type, name, " has dtype ", dtype_name(numbers.tensor.scalar_type()),
               "; expected ", dtype_name(type));
  }
  Topology checked_csr(const AdjacencyTensors& csr) const {
    const Tensor& indptr = csr.indptr;
    const Topology topology = topology_of(indptr, csr.indices, csr.edge_ids, args_.topology.num_edges, csr.short_rows);
    CHECK_TYPE(topology.is_int64 == args_.topology.is_int64, "out_indptr has dtype ", dtype_name(indptr.scalar_type()),
               "; expected that of indptr");
    const int64_t num_src = operands_[kKey].tensor.size(0);
    CHECK_VALUE(topology.num_rows == num_src, "out_indptr has shape ", indptr.sizes(), "; expected (", num_src + 1,
                ",), one more than there are source nodes");
    return topology;
  }

  bool is_needed(Place place, const Needs& needs) const {
    switch (place) {
      case kEdgeBias: return needs.edge_bias;
      case kEdgeKey: return needs.edge_key;
      case kEdgeValue: return needs.edge_value;
      case kEdgeFeat: return needs.edge_feat;
      case kEdgeWeight: return needs.edge_weight;
      case kEdgeQuery: return operands_[kEdgeQuery].defined() || key_weight_.defined();
      default: return true;
    }
  }
  // Memory for the gradient of an operand: empty unless it is needed, undefined if the attention has no such operand.
  Tensor new_gradient(Place place, bool is_needed) const {
    static constexpr const char* kNames[] = {"query",    "key",        "value",     "attn",       "edge_bias",
                                             "edge_key", "edge_value", "edge_feat", "edge_query", "edge_weight"};
    const bool is_dot = args_.score == PairScore::kDot, is_wide = operands_[kEdgeQuery].defined();
    if (is_dot ? place == kAttn || place == kEdgeWeight : place == kValue || place == kEdgeValue || place == kEdgeQuery)
      return {};
    const auto options = operands_[kKey].tensor.options(), wide = statistics_options(operands_[kKey]);
    if (place == kEdgeQuery && key_weight_.defined())
      return new_result({args_.topology.num_rows, args_.heads, args_.edge.feat_dim}, wide);
    CHECK_VALUE(!is_needed || operands_[place].defined(), "need_", kNames[place], " is set, but ", kNames[place],
                " is None");
    if (!is_needed) return empty({0}, place == kEdgeQuery ? wide : options);
    if (place == kQuery && is_wide) return new_result(operands_[kQuery].tensor.sizes(), wide);
    return result_like(operands_[place]);
  }
  void** pointer_of(Place place) {
    void** const pointers[] = {&args_.grad_query,      &args_.grad_key,       &args_.grad_value,
                               &args_.grad_attn,       &args_.edge.grad_bias, &args_.edge.grad_key,
                               &args_.edge.grad_value, &args_.edge.grad_feat, &args_.edge.grad_query,
                               &args_.edge.grad_weight};
    return pointers[place];
  }
  Tensor cut(Place place, const Tensor& gradient) const {
    if (place == kEdgeBias) return gradient;
    if (place == kEdgeWeight) return heads_.cut_with(columns_, gradient);
    return place == kEdgeFeat || place == kEdgeQuery ? columns_.cut(gradient) : heads_.cut(gradient);
  }

  const Device device_;
  const bool has_edges_;
  const AlignedRows heads_, columns_;
  std::array<Feature, kNumPlaces> operands_;
  Feature key_weight_, value_weight_;  // their gradients are the caller's, from those of edge_query and from edge_out
  PairAttentionArgs args_;
};

// ---- The operators.

std::tuple<Tensor, Tensor, Tensor> gatv2_attention(const Tensor& indptr, const Tensor& indices,
                                                   const OptionalTensor& edge_ids, const Tensor& feat_src,
                                                   const Tensor& feat_dst, const Tensor& attn, double negative_slope,
                                                   double dropout_p, const OptionalTensor& seed, bool save,
                                                   bool precise, bool short_rows, const OptionalTensor& edge_bias,
                                                   const OptionalTensor& edge_key, const OptionalTensor& edge_feat,
                                                   const OptionalTensor& edge_weight) {
  const DeviceGuard guard(indptr.device());
  PairCall call({indptr, indices, edge_ids, short_rows},
                {PairScore::kLeaky, feat_dst, feat_src, feat_src, attn, negative_slope, {dropout_p, seed}},
                {edge_bias, edge_key, {}, edge_feat, {}, edge_weight, false, {}, {}});
  auto [out, lse, out_residual, edge_out] = call.forward(false, save, precise);
  return {out, lse, out_residual};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> gatv2_attention_backward(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& out_indptr,
    const Tensor& out_indices, const OptionalTensor& out_edge_ids, const Tensor& feat_src, const Tensor& feat_dst,
    const Tensor& attn, double negative_slope, double dropout_p, const OptionalTensor& seed, const Tensor& grad,
    const Tensor& out, const Tensor& lse, const Tensor& out_residual, bool short_rows, bool out_short_rows,
    const OptionalTensor& edge_bias, const OptionalTensor& edge_key, const OptionalTensor& edge_feat,
    const OptionalTensor& edge_weight, bool need_edge_bias, bool need_edge_key, bool need_edge_feat,
    bool need_edge_weight) {
  const DeviceGuard guard(indptr.device());
  PairCall call({indptr, indices, edge_ids, short_rows},
                {PairScore::kLeaky, feat_dst, feat_src, feat_src, attn, negative_slope, {dropout_p, seed}},
                {edge_bias, edge_key, {}, edge_feat, {}, edge_weight, false, {}, {}});
  const Gradients of =
      call.backward({out_indptr, out_indices, out_edge_ids, out_short_rows}, {grad, out, lse, out_residual, {}},
                    {need_edge_bias, need_edge_key, false, need_edge_feat, need_edge_weight});
  return {of[kKey], of[kQuery], of[kAttn], of[kEdgeBias], of[kEdgeKey], of[kEdgeFeat], of[kEdgeWeight]};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> dot_attention(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& query, const Tensor& key,
    const Tensor& value, double scale, double dropout_p, const OptionalTensor& seed, bool save, bool precise,
    bool short_rows, const OptionalTensor& edge_bias, const OptionalTensor& edge_key, const OptionalTensor& edge_value,
    bool edge_key_is_value, const OptionalTensor& edge_feat, const OptionalTensor& edge_query, bool need_edge_out,
    const OptionalTensor& edge_key_weight, const OptionalTensor& edge_value_weight) {
  const DeviceGuard guard(indptr.device());
  PairCall call({indptr, indices, edge_ids, short_rows},
                {PairScore::kDot, query, key, value, {}, scale, {dropout_p, seed}},
                {edge_bias,
                 edge_key,
                 edge_value,
                 edge_feat,
                 edge_query,
                 {},
                 edge_key_is_value,
                 edge_key_weight,
                 edge_value_weight});
  auto [out, lse, out_residual, edge_out] = call.forward(need_edge_out, save, precise);
  if (!need_edge_out) edge_out = empty({0}, call.wide_options());
  return {out, lse, out_residual, edge_out};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> dot_attention_backward(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& out_indptr,
    const Tensor& out_indices, const OptionalTensor& out_edge_ids, const Tensor& query, const Tensor& key,
    const Tensor& value, double scale, double dropout_p, const OptionalTensor& seed, const Tensor& grad,
    const Tensor& out, const Tensor& lse, const Tensor& out_residual, bool short_rows, bool out_short_rows,
    const OptionalTensor& edge_bias, const OptionalTensor& edge_key, const OptionalTensor& edge_value,
    bool edge_key_is_value, const OptionalTensor& edge_feat, const OptionalTensor& edge_query,
    const OptionalTensor& grad_edge_out, bool need_edge_bias, bool need_edge_key, bool need_edge_value,
    bool need_edge_feat, const OptionalTensor& edge_key_weight, const OptionalTensor& edge_value_weight) {
  const DeviceGuard guard(indptr.device());
  PairCall call({indptr, indices, edge_ids, short_rows},
                {PairScore::kDot, query, key, value, {}, scale, {dropout_p, seed}},
                {edge_bias,
                 edge_key,
                 edge_value,
                 edge_feat,
                 edge_query,
                 {},
                 edge_key_is_value,
                 edge_key_weight,
                 edge_value_weight});
  const Gradients of = call.backward({out_indptr, out_indices, out_edge_ids, out_short_rows},
                                     {grad, out, lse, out_residual, grad_edge_out},
                                     {need_edge_bias, need_edge_key, need_edge_value, need_edge_feat, false});
  return {of[kQuery], of[kKey], of[kValue], of[kEdgeBias], of[kEdgeKey], of[kEdgeValue], of[kEdgeFeat], of[kEdgeQuery]};
}

}  // namespace

void register_pair_attention(Library& m) {
  m.impl<&gatv2_attention>("gatv2_attention");
  m.impl<&gatv2_attention_backward>("gatv2_attention_backward");
  m.impl<&dot_attention>("dot_attention");
  m.impl<&dot_attention_backward>("dot_attention_backward");
}

}  // namespace halfgnn
