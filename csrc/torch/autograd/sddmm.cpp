// gsddmm with its gradients, as in halfgnn/ops/sddmm.py.
#include "function.h"

namespace halfgnn::autograd {
namespace {

struct SDDMM {
  static constexpr const char* kName = "gsddmm";
  static constexpr size_t kDifferentiable = 1;
  static constexpr const char* kSchema =
      "gsddmm(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor? out_indptr, Tensor? out_indices, "
      "Tensor? out_edge_ids, str op, Tensor? lhs, Tensor? rhs, str lhs_target, str rhs_target, ScalarType? out_dtype, "
      "bool short_rows, bool out_short_rows) -> Tensor";
  enum Place : size_t {
    kIndptr,
    kIndices,
    kEdgeIds,
    kOutIndptr,
    kOutIndices,
    kOutEdgeIds,
    kOp,
    kLhs,
    kRhs,
    kLhsTarget,
    kRhsTarget,
    kOutDtype,
    kShortRows,
    kOutShortRows,
    kLhsShape,
    kRhsShape,
    kLhsDtype,
    kRhsDtype
  };

  static std::vector<size_t> operands() { return {kLhs, kRhs}; }
  static bool is_checked(size_t) { return true; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::gsddmm");
    return call(op, {x[kIndptr], x[kIndices], x[kEdgeIds], x[kOp], x[kLhs], x[kRhs], x[kLhsTarget], x[kRhsTarget],
                     x[kOutDtype]});
  }

  static void keep(Values& x, const Values& /*results*/) {
    const std::string& op = x[kOp].toStringRef();
    const IValue lhs = x[kLhs], rhs = x[kRhs];
    const bool need_lhs = requires_grad(lhs), need_rhs = requires_grad(rhs);
    const bool multiplies = op == "mul" || op == "div" || op == "dot";
    if (!(multiplies && need_rhs)) x[kLhs] = IValue();
    if (!(multiplies && need_lhs) && !(op == "div" && need_rhs)) x[kRhs] = IValue();
    append_shapes_and_dtypes(x, lhs, rhs);
  }

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& needs) {
    const bool by_src =
        (needs[0] && x[kLhsTarget].toStringRef() == "u") || (needs[1] && x[kRhsTarget].toStringRef() == "u");
    if (by_src && x[kOutIndptr].isNone()) return gradients_by_python(kName, x, grads, needs);
    return {needs[0] ? gradient(x, grads[0], true) : at::Tensor(),
            needs[1] ? gradient(x, grads[0], false) : at::Tensor()};
  }

 private:
  static at::Tensor gradient(const Values& x, const at::Tensor& grad, bool of_lhs) {
    static const c10::OperatorHandle op = operator_named("halfgnn::gsddmm_backward");
    const IValue& shape = x[of_lhs ? kLhsShape : kRhsShape];
    const IValue& dtype = x[of_lhs ? kLhsDtype : kRhsDtype];
    const std::string& target = x[of_lhs ? kLhsTarget : kRhsTarget].toStringRef();
    if (target == "e" && is_passed_on(x[kOp].toStringRef(), of_lhs) && grad.scalar_type() == dtype.toScalarType() &&
        IValue(grad.sym_sizes()) == shape)  // last: sizes that are being traced are not compared in vain
      return grad;
    const bool by_src = target == "u";
    return call(op, {x[by_src ? kOutIndptr : kIndptr], x[by_src ? kOutIndices : kIndices],
                     x[by_src ? kOutEdgeIds : kEdgeIds], by_src, x[kOp], std::string(of_lhs ? "lhs" : "rhs"), grad,
                     x[kLhs], x[kRhs], x[kLhsTarget], x[kRhsTarget], x[kLhsShape], x[kRhsShape], dtype,
                     x[by_src ? kOutShortRows : kShortRows]})[0]
        .toTensor();
  }

  // Whether the gradient of the result is that of an operand of edges.
  static bool is_passed_on(const std::string& op, bool of_lhs) {
    return op == "add" || op == (of_lhs ? "copy_lhs" : "copy_rhs") || (op == "sub" && of_lhs);
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(halfgnn_autograd, m) { define<SDDMM>(m); }

}  // namespace halfgnn::autograd
