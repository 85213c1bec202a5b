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

// GATv2 and dot attention: kNodes operands of nodes, and kTerms of edges.
struct GATv2 {
  static constexpr const char* kName = "gatv2_attention";
  static constexpr size_t kDifferentiable = 1;
  static constexpr const char* kSchema =
      "gatv2_attention(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor out_indptr, Tensor out_indices, "
      "Tensor? out_edge_ids, Tensor feat_src, Tensor feat_dst, Tensor attn, Tensor? edge_bias, Tensor? edge_key, "
      "Tensor? edge_feat, Tensor? edge_weight, float negative_slope, float dropout_p, Tensor? seed, bool precise, "
      "bool short_rows, bool out_short_rows) -> (Tensor out, Tensor lse, Tensor out_residual)";
  enum Place : size_t {
    kFeat = 6,
    kTerms = 9,
    kSlope = 13,
    kDropout,
    kSeed,
    kPrecise,
    kShortRows,
    kOutShortRows,
    kResults
  };

  static std::vector<size_t> operands() { return {6, 7, 8, 9, 10, 11, 12}; }
  static bool is_checked(size_t) { return true; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::gatv2_attention");
    Values arguments(x.begin(), x.begin() + 3);
    append(arguments, x, kFeat, 3);
    append(arguments, x, kSlope, 3);
    arguments.insert(arguments.end(), {true, x[kPrecise], x[kShortRows]});
    append(arguments, x, kTerms, 4);
    return call(op, std::move(arguments));
  }

  static void keep(Values& x, const Values& results) { append(x, results, 0, results.size()); }

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& needs) {
    static const c10::OperatorHandle op = operator_named("halfgnn::gatv2_attention_backward");
    Values arguments(x.begin(), x.begin() + kSides);
    append(arguments, x, kFeat, 3);
    append(arguments, x, kSlope, 3);
    arguments.emplace_back(grads[0]);
    append(arguments, x, kResults, 3);
    arguments.insert(arguments.end(), {x[kShortRows], x[kOutShortRows]});
    append(arguments, x, kTerms, 4);
    for (size_t i = 3; i < needs.size(); ++i) arguments.emplace_back(bool(needs[i]));
    return needed(call(op, std::move(arguments)), needs);
  }
};

struct Dot {
  static constexpr const char* kName = "dot_attention";
  static constexpr size_t kDifferentiable = 1;
  static constexpr const char* kSchema =
      "dot_attention(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor out_indptr, Tensor out_indices, "
      "Tensor? out_edge_ids, Tensor query, Tensor key, Tensor value, Tensor? edge_bias, Tensor? edge_key, "
      "Tensor? edge_value, Tensor? edge_feat, Tensor? key_weight, Tensor? value_weight, bool key_is_value, "
      "bool one_weight, float scale, float dropout_p, Tensor? seed, bool precise, bool short_rows, bool "
      "out_short_rows) "
      "-> (Tensor out, Tensor lse, Tensor out_residual, Tensor edge_out)";
  enum Place : size_t {
    kQuery = 6,
    kTerms = 9,
    kEdgeFeat = 12,
    kKeyIsValue = 15,
    kOneWeight,
    kScale,
    kDropout,
    kSeed,
    kPrecise,
    kShortRows,
    kOutShortRows,
    kResults
  };

  static std::vector<size_t> operands() { return {6, 7, 8, 9, 10, 11}; }
  static bool is_checked(size_t) { return true; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::dot_attention");
    TORCH_CHECK(x[kEdgeFeat].isNone(), "edge_feat is given, but its columns are projected in Python");
    Values arguments(x.begin(), x.begin() + 3);
    append(arguments, x, kQuery, 3);
    append(arguments, x, kScale, 3);
    arguments.insert(arguments.end(), {true, x[kPrecise], x[kShortRows]});
    append(arguments, x, kTerms, 3);
    arguments.insert(arguments.end(), {x[kKeyIsValue], IValue(), IValue(), false, IValue(), IValue()});
    return call(op, std::move(arguments));
  }

  static void keep(Values& x, const Values& results) { append(x, results, 0, results.size()); }

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& needs) {
    static const c10::OperatorHandle op = operator_named("halfgnn::dot_attention_backward");
    Values arguments(x.begin(), x.begin() + kSides);
    append(arguments, x, kQuery, 3);
    append(arguments, x, kScale, 3);
    arguments.emplace_back(grads[0]);
    append(arguments, x, kResults, 3);
    arguments.insert(arguments.end(), {x[kShortRows], x[kOutShortRows]});
    append(arguments, x, kTerms, 3);
    arguments.insert(arguments.end(), {x[kKeyIsValue], IValue(), IValue(), IValue()});
    for (size_t i = 3; i < needs.size(); ++i) arguments.emplace_back(bool(needs[i]));
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
