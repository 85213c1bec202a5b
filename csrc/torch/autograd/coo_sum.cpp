// coo_sum with its gradients, as in halfgnn/ops/coo_sum.py.
#include "function.h"

namespace halfgnn::autograd {
namespace {

struct CooSum {
  static constexpr const char* kName = "coo_sum";
  static constexpr size_t kDifferentiable = 1;
  static constexpr const char* kSchema =
      "coo_sum(Tensor? row, Tensor? col, Tensor feat, Tensor? rhs, str op, str reduce, SymInt num_rows) -> Tensor";
  enum Place : size_t { kRow, kCol, kFeat, kRhs, kOp, kReduce, kNumRows, kNumCols };

  static std::vector<size_t> operands() { return {kFeat, kRhs}; }
  static bool is_checked(size_t) { return true; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::coo_sum");
    return call(op, x);
  }

  static void keep(Values& x, const Values& /*results*/) {
    const bool need_feat = requires_grad(x[kFeat]), need_rhs = requires_grad(x[kRhs]);
    x.emplace_back(x[kFeat].toTensor().sym_size(0));
    const std::string& op = x[kOp].toStringRef();
    const bool reads_both = op == "relu_add", is_product = op == "mul";
    if (!reads_both && !(is_product && need_rhs)) x[kFeat] = IValue();
    if (!reads_both && !(is_product && need_feat)) x[kRhs] = IValue();
  }

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& needs) {
    static const c10::OperatorHandle op = operator_named("halfgnn::coo_sum_backward");
    return tensors_of(call(op, {x[kRow], x[kCol], grads[0], x[kFeat], x[kRhs], x[kOp], x[kReduce], x[kNumCols],
                                bool(needs[0]), bool(needs[1])}));
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(halfgnn_autograd, m) { define<CooSum>(m); }

}  // namespace halfgnn::autograd
