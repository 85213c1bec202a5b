// gated_sum with its gradients, as in halfgnn/ops/gated_sum.py.
#include "function.h"

namespace halfgnn::autograd {
namespace {

struct GatedSum {
  static constexpr const char* kName = "gated_sum";
  static constexpr size_t kDifferentiable = 2;
  static constexpr const char* kSchema =
      "gated_sum(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor? out_indptr, Tensor? out_indices, "
      "Tensor? out_edge_ids, Tensor value, Tensor gate_src, Tensor gate_dst, Tensor? gate_edge, Tensor? edge_value, "
      "bool normalize, float eps, bool return_edges, bool short_rows, bool out_short_rows) "
      "-> (Tensor out, Tensor edges, Tensor scale, Tensor quotient)";
  enum Place : size_t {
    kIndptr,
    kIndices,
    kEdgeIds,
    kOutIndptr,
    kOutIndices,
    kOutEdgeIds,
    kValue,
    kGateSrc,
    kGateDst,
    kGateEdge,
    kEdgeValue,
    kNormalize,
    kEps,
    kReturnEdges,
    kShortRows,
    kOutShortRows,
    kScale,
    kQuotient
  };

  static std::vector<size_t> operands() { return {kValue, kGateSrc, kGateDst, kGateEdge, kEdgeValue}; }
  static bool is_checked(size_t) { return true; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::gated_sum");
    return call(op, {x[kIndptr], x[kIndices], x[kEdgeIds], x[kValue], x[kGateSrc], x[kGateDst], x[kGateEdge],
                     x[kEdgeValue], x[kNormalize], x[kEps], x[kReturnEdges], true, x[kShortRows]});
  }

  static void keep(Values& x, const Values& results) { x.insert(x.end(), {results[2], results[3]}); }

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& needs) {
    if (x[kOutIndptr].isNone()) return gradients_by_python(kName, x, grads, needs);
    static const c10::OperatorHandle op = operator_named("halfgnn::gated_sum_backward");
    const at::Tensor of_edges = x[kReturnEdges].toBool() ? grads[1] : at::Tensor();
    const IValue grad = grads[0].defined() ? grads[0] : at::zeros_like(x[kGateDst].toTensor());
    Tensors gradients = tensors_of(
        call(op, {x[kIndptr],     x[kIndices],        x[kEdgeIds],    x[kOutIndptr], x[kOutIndices],  x[kOutEdgeIds],
                  x[kValue],      x[kGateSrc],        x[kGateDst],    x[kGateEdge],  x[kEdgeValue],   x[kNormalize],
                  grad,           value_of(of_edges), x[kScale],      x[kQuotient],  bool(needs[0]),  bool(needs[1]),
                  bool(needs[2]), bool(needs[3]),     bool(needs[4]), x[kShortRows], x[kOutShortRows]}));
    for (size_t i = 0; i < gradients.size(); ++i)
      if (!needs[i]) gradients[i] = at::Tensor();
    return gradients;
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(halfgnn_autograd, m) { define<GatedSum>(m); }

}  // namespace halfgnn::autograd
