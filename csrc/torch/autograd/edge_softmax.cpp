// edge_softmax with its gradient, as in halfgnn/ops/edge_softmax.py.
#include "function.h"

namespace halfgnn::autograd {
namespace {

struct EdgeSoftmax {
  static constexpr const char* kName = "edge_softmax";
  static constexpr size_t kDifferentiable = 1;
  static constexpr const char* kSchema =
      "edge_softmax(Tensor indptr, Tensor? edge_ids, Tensor logits, bool short_rows) -> Tensor";
  enum Place : size_t { kIndptr, kEdgeIds, kLogits, kShortRows, kOut };

  static std::vector<size_t> operands() { return {kLogits}; }
  static bool is_checked(size_t) { return true; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::edge_softmax");
    return call(op, x);
  }

  static void keep(Values& x, const Values& results) {
    x[kLogits] = IValue();
    x.push_back(results[0]);
  }

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& /*needs*/) {
    static const c10::OperatorHandle op = operator_named("halfgnn::edge_softmax_backward");
    return tensors_of(call(op, {x[kIndptr], x[kEdgeIds], x[kOut], grads[0], x[kShortRows]}));
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(halfgnn_autograd, m) { define<EdgeSoftmax>(m); }

}  // namespace halfgnn::autograd
