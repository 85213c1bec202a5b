// gspmm with its gradients, as in halfgnn/ops/spmm.py.
#include "function.h"

namespace halfgnn::autograd {
namespace {

struct SpMM {
  static constexpr const char* kName = "gspmm";
  static constexpr size_t kDifferentiable = 1;
  static constexpr const char* kSchema =
      "gspmm(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor? out_indptr, Tensor? out_indices, "
      "Tensor? out_edge_ids, str op, str reduce, Tensor? lhs, Tensor? rhs, ScalarType? out_dtype, bool short_rows, "
      "bool out_short_rows, Tensor? schedule, Tensor? out_schedule, Tensor? in_weights, Tensor? out_weights) "
      "-> (Tensor out, Tensor arg)";
  enum Place : size_t {
    kIndptr,
    kIndices,
    kEdgeIds,
    kOutIndptr,
    kOutIndices,
    kOutEdgeIds,
    kOp,
    kReduce,
    kLhs,
    kRhs,
    kOutDtype,
    kShortRows,
    kOutShortRows,
    kSchedule,
    kOutSchedule,
    kInWeights,
    kOutWeights,
    kArg,
    kLhsShape,
    kRhsShape,
    kLhsDtype,
    kRhsDtype
  };

  static std::vector<size_t> operands() { return {kLhs, kRhs}; }

  // A checkpoint's second forward may be the one that makes them.
  static bool is_checked(size_t place) { return place != kOutSchedule && place != kOutWeights; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::gspmm");
    const bool is_sorted = x[kInWeights].isTensor();
    return call(op, {x[kIndptr], x[kIndices], is_sorted ? IValue() : x[kEdgeIds], x[kOp], x[kReduce], x[kLhs],
                     is_sorted ? x[kInWeights] : x[kRhs], x[kOutDtype], x[kShortRows], true, x[kSchedule]});
  }

  static void keep(Values& x, const Values& results) {
    const std::string& op = x[kOp].toStringRef();
    const std::string& reduce = x[kReduce].toStringRef();
    const IValue lhs = x[kLhs], rhs = x[kRhs];
    const bool need_lhs = requires_grad(lhs), need_rhs = requires_grad(rhs);
    const bool multiplies = op == "mul" || op == "div";
    if (!(multiplies && need_rhs) && op != "relu_add") x[kLhs] = IValue();
    if (!(multiplies && need_lhs) && !(op == "div" && need_rhs) && op != "relu_add") x[kRhs] = IValue();
    if (!need_lhs) x[kOutIndptr] = x[kOutIndices] = x[kOutEdgeIds] = IValue();
    x[kSchedule] = x[kInWeights] = IValue();
    x.push_back(reduce == "max" || reduce == "min" ? results[1] : IValue());
    append_shapes_and_dtypes(x, lhs, rhs);
  }

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& needs) {
    const bool need_lhs = needs[0], need_rhs = needs[1];
    if (need_lhs && x[kOutIndptr].isNone()) return gradients_by_python(kName, x, grads, needs);
    static const c10::OperatorHandle op = operator_named("halfgnn::gspmm_backward");
    const bool is_sorted = x[kOutWeights].isTensor();
    const bool reads_in_edges =
        need_lhs &&
        (x[kOp].toStringRef() == "mul" ? need_rhs : x[kOp].toStringRef() == "copy_lhs" && x[kArg].isTensor());
    const Values results = call(op, {x[need_lhs ? kOutIndptr : kIndptr],
                                     x[need_lhs ? kOutIndices : kIndices],
                                     need_lhs && is_sorted ? IValue() : x[need_lhs ? kOutEdgeIds : kEdgeIds],
                                     x[kIndptr],
                                     need_lhs,
                                     x[kOp],
                                     x[kReduce],
                                     grads[0],
                                     x[kLhs],
                                     is_sorted ? x[kOutWeights] : x[kRhs],
                                     x[kArg],
                                     x[kLhsShape],
                                     x[kRhsShape],
                                     x[kLhsDtype],
                                     x[kRhsDtype],
                                     need_lhs,
                                     need_rhs,
                                     x[need_lhs ? kOutShortRows : kShortRows],
                                     reads_in_edges ? x[kIndices] : IValue(),
                                     reads_in_edges ? x[kEdgeIds] : IValue(),
                                     need_lhs ? x[kOutSchedule] : IValue()});
    return tensors_of(results);
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(halfgnn_autograd, m) { define<SpMM>(m); }

}  // namespace halfgnn::autograd
