// copy_u_reduce with its gradient, as in halfgnn/ops/copy_u_reduce.py.
#include "function.h"

namespace halfgnn::autograd {
namespace {

struct CopyUReduce {
  static constexpr const char* kName = "copy_u_reduce";
  static constexpr size_t kDifferentiable = 6;
  static constexpr const char* kSchema =
      "copy_u_reduce(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor? out_indptr, Tensor? out_indices, "
      "Tensor? out_edge_ids, Tensor x, str reduces, float eps, ScalarType? out_dtype, bool short_rows, "
      "bool out_short_rows) -> (Tensor sum, Tensor mean, Tensor max, Tensor min, Tensor var, Tensor std, "
      "Tensor arg_max, Tensor arg_min, Tensor kept_mean, Tensor kept_std)";
  enum Place : size_t {
    kIndptr,
    kIndices,
    kEdgeIds,
    kOutIndptr,
    kOutIndices,
    kOutEdgeIds,
    kX,
    kReduces,
    kEps,
    kOutDtype,
    kShortRows,
    kOutShortRows,
    kArgMax,
    kArgMin,
    kMean,
    kStd,
    kShape,
    kDtype
  };
  enum Result : size_t { kOfMax = 2, kOfMin, kOfVar, kOfStd };
  static constexpr double kStdEps = 1e-5;  // STD_EPS

  static std::vector<size_t> operands() { return {kX}; }
  static bool is_checked(size_t) { return true; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::copy_u_reduce");
    return call(op,
                {x[kIndptr], x[kIndices], x[kEdgeIds], x[kX], x[kReduces], x[kEps], x[kOutDtype], true, x[kShortRows]});
  }

  static void keep(Values& x, const Values& results) {
    const std::string& reduces = x[kReduces].toStringRef();
    const bool has_squares = reduces.find("var") != std::string::npos || reduces.find("std") != std::string::npos;
    const at::Tensor operand = x[kX].toTensor();
    if (!has_squares) x[kX] = IValue();
    x.insert(x.end(), results.begin() + kDifferentiable, results.end());
    x.insert(x.end(), {operand.sym_sizes(), operand.scalar_type()});
  }

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& needs) {
    const bool of_max = grads[kOfMax].defined(), of_min = grads[kOfMin].defined();
    const bool of_std = grads[kOfStd].defined(), of_squares = of_std || grads[kOfVar].defined();
    if (x[kOutIndptr].isNone() || (of_std && x[kEps].toDouble() < kStdEps))
      return gradients_by_python(kName, x, grads, needs);
    static const c10::OperatorHandle op = operator_named("halfgnn::copy_u_reduce_backward");
    const auto where = [&](bool is_read, Place place) { return is_read ? x[place] : IValue(); };
    Values arguments = {x[kOutIndptr],         x[kOutIndices], x[kOutEdgeIds], x[kIndptr],
                        where(of_squares, kX), x[kShape],      x[kDtype]};
    for (const at::Tensor& grad : grads)
      if (arguments.size() < 7 + kDifferentiable) arguments.push_back(value_of(grad));
    const bool reads_in_edges = of_max || of_min;
    arguments.insert(arguments.end(),
                     {where(of_max, kArgMax), where(of_min, kArgMin), where(of_squares, kMean), where(of_std, kStd),
                      x[kOutShortRows], where(reads_in_edges, kIndices), where(reads_in_edges, kEdgeIds)});
    return tensors_of(call(op, std::move(arguments)));
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(halfgnn_autograd, m) { define<CopyUReduce>(m); }

}  // namespace halfgnn::autograd
