// The fused attentions with their gradients, as in halfgnn/ops/attention. Columns of edges that are projected in Python
// (edge_feat of dot attention, and of GATv2 where no kernel takes them) have Functions there alone.
#include "function.h"

namespace halfgnn::autograd {
namespace {

constexpr size_t kSides = 6;  // CSC and CSR: indptr, indices and edge_ids of each

// The elements of x from first, count of them.
void append(Values& to, const Values& x, size_t first, size_t count) {
  to.insert(to.end(), x.begin() + first, x.begin() + first + count);
}

Tensors needed(const Values& results, const Needs& needs) {
  Tensors gradients(needs.size());
  for (size_t i = 0; i < needs.size(); ++i)
    if (needs[i]) gradients[i] = tensor_of(results[i]);
  return gradients;
}

struct GAT {
  static constexpr const char* kName = "gat_attention";
  static constexpr size_t kDifferentiable = 1;
  static constexpr const char* kSchema =
      "gat_attention(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor out_indptr, Tensor out_indices, "
      "Tensor? out_edge_ids, Tensor feat, Tensor attn_src, Tensor attn_dst, Tensor? edge_logits, float negative_slope, "
      "float dropout_p, Tensor? seed, bool precise, bool short_rows, bool out_short_rows, Tensor? schedule, "
      "Tensor? out_schedule) -> (Tensor out, Tensor lse, Tensor out_residual, Tensor positive)";
  enum Place : size_t {
    kOutIndptr = 3,
    kFeat = 6,
    kEdgeLogits = 9,
    kSlope,
    kDropout,
    kSeed,
    kPrecise,
    kShortRows,
    kOutShortRows,
    kSchedule,
    kOutSchedule,
    kResults
  };

  static std::vector<size_t> operands() { return {kFeat, kFeat + 1, kFeat + 2, kEdgeLogits}; }
  // A checkpoint's second forward may be the one that makes it.
  static bool is_checked(size_t place) { return place != kOutSchedule; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::gat_attention");
    Values arguments(x.begin(), x.begin() + kOutIndptr);
    append(arguments, x, kFeat, kSeed - kFeat + 1);
    arguments.insert(arguments.end(), {true, x[kPrecise], x[kShortRows], x[kSchedule]});
    return call(op, std::move(arguments));
  }

  static void keep(Values& x, const Values& results) {
    std::fill_n(x.begin(), kOutIndptr, IValue());
    x[kSchedule] = IValue();
    append(x, results, 0, results.size());
  }

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& needs) {
    static const c10::OperatorHandle op = operator_named("halfgnn::gat_attention_backward");
    Values arguments(x.begin() + kOutIndptr, x.begin() + kSeed + 1);
    arguments.emplace_back(grads[0]);
    append(arguments, x, kResults, 4);
    const bool need_edge_logits = needs.back();
    arguments.insert(arguments.end(), {need_edge_logits, x[kOutShortRows], x[kOutSchedule]});
    return needed(call(op, std::move(arguments)), needs);
  }
};

// What GATv2 and dot attention share: three operands of nodes, terms of edges up to kFirstOption, and three options.
template <size_t kFirstOption>
struct Pair {
  static constexpr size_t kDifferentiable = 1;
  static constexpr size_t kFirstNode = 6, kFirstTerm = 9, kPrecise = kFirstOption + 3, kShortRows = kPrecise + 1,
                          kOutShortRows = kPrecise + 2, kResults = kPrecise + 3;

  static bool is_checked(size_t) { return true; }
  static void keep(Values& x, const Values& results) { append(x, results, 0, results.size()); }

 protected:
  // The arguments of the raw operators before the terms.
  static Values of_forward(const Values& x) {
    Values arguments(x.begin(), x.begin() + kSides / 2);
    append(arguments, x, kFirstNode, 3);
    append(arguments, x, kFirstOption, 3);
    arguments.insert(arguments.end(), {true, x[kPrecise], x[kShortRows]});
    return arguments;
  }
  static Values of_backward(const Values& x, const at::Tensor& grad) {
    Values arguments(x.begin(), x.begin() + kSides);
    append(arguments, x, kFirstNode, 3);
    append(arguments, x, kFirstOption, 3);
    arguments.emplace_back(grad);
    append(arguments, x, kResults, 3);
    arguments.insert(arguments.end(), {x[kShortRows], x[kOutShortRows]});
    return arguments;
  }
  static void append_needs_of_terms(Values& arguments, const Needs& needs) {
    for (size_t i = 3; i < needs.size(); ++i) arguments.emplace_back(bool(needs[i]));
  }
};

struct GATv2 : Pair<13> {
  static constexpr const char* kName = "gatv2_attention";
  static constexpr const char* kSchema =
      "gatv2_attention(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor out_indptr, Tensor out_indices, "
      "Tensor? out_edge_ids, Tensor feat_src, Tensor feat_dst, Tensor attn, Tensor? edge_bias, Tensor? edge_key, "
      "Tensor? edge_feat, Tensor? edge_weight, float negative_slope, float dropout_p, Tensor? seed, bool precise, "
      "bool short_rows, bool out_short_rows) -> (Tensor out, Tensor lse, Tensor out_residual)";

  static std::vector<size_t> operands() { return {6, 7, 8, 9, 10, 11, 12}; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::gatv2_attention");
    Values arguments = of_forward(x);
    append(arguments, x, kFirstTerm, 4);
    return call(op, std::move(arguments));
  }

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& needs) {
    static const c10::OperatorHandle op = operator_named("halfgnn::gatv2_attention_backward");
    Values arguments = of_backward(x, grads[0]);
    append(arguments, x, kFirstTerm, 4);
    append_needs_of_terms(arguments, needs);
    return needed(call(op, std::move(arguments)), needs);
  }
};

struct Dot : Pair<17> {
  static constexpr const char* kName = "dot_attention";
  static constexpr const char* kSchema =
      "dot_attention(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor out_indptr, Tensor out_indices, "
      "Tensor? out_edge_ids, Tensor query, Tensor key, Tensor value, Tensor? edge_bias, Tensor? edge_key, "
      "Tensor? edge_value, Tensor? edge_feat, Tensor? key_weight, Tensor? value_weight, bool key_is_value, "
      "bool one_weight, float scale, float dropout_p, Tensor? seed, bool precise, bool short_rows, bool "
      "out_short_rows) "
      "-> (Tensor out, Tensor lse, Tensor out_residual, Tensor edge_out)";
  static constexpr size_t kEdgeFeat = 12, kKeyIsValue = 15;

  static std::vector<size_t> operands() { return {6, 7, 8, 9, 10, 11}; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::dot_attention");
    TORCH_CHECK(x[kEdgeFeat].isNone(), "edge_feat is given, but its columns are projected in Python");
    Values arguments = of_forward(x);
    append(arguments, x, kFirstTerm, 3);
    arguments.insert(arguments.end(), {x[kKeyIsValue], IValue(), IValue(), false, IValue(), IValue()});
    return call(op, std::move(arguments));
  }

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& needs) {
    static const c10::OperatorHandle op = operator_named("halfgnn::dot_attention_backward");
    Values arguments = of_backward(x, grads[0]);
    append(arguments, x, kFirstTerm, 3);
    arguments.insert(arguments.end(), {x[kKeyIsValue], IValue(), IValue(), IValue()});
    append_needs_of_terms(arguments, needs);
    arguments.insert(arguments.end(), {false, IValue(), IValue()});
    return needed(call(op, std::move(arguments)), needs);
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(halfgnn_autograd, m) {
  define<GAT>(m);
  define<GATv2>(m);
  define<Dot>(m);
}

}  // namespace halfgnn::autograd
