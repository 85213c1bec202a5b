// coo_softmax with its gradient, as in halfgnn/ops/coo_softmax.py.
#include "function.h"

namespace halfgnn::autograd {
namespace {

struct CooSoftmax {
  static constexpr const char* kName = "coo_softmax";
  static constexpr size_t kDifferentiable = 1;
  static constexpr const char* kSchema = "coo_softmax(Tensor row, Tensor logits, SymInt num_rows) -> Tensor";
  enum Place : size_t { kRow, kLogits, kNumRows, kOut };

  static std::vector<size_t> operands() { return {kLogits}; }
  static bool is_checked(size_t) { return true; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::coo_softmax");
    return call(op, x);
  }

  static void keep(Values& x, const Values& results) {
    x[kLogits] = IValue();
    x.push_back(results[0]);
  }

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& /*needs*/) {
    static const c10::OperatorHandle op = operator_named("halfgnn::coo_softmax_backward");
    return tensors_of(call(op, {x[kRow], x[kOut], grads[0], x[kNumRows]}));
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(halfgnn_autograd, m) { define<CooSoftmax>(m); }

}  // namespace halfgnn::autograd
