// segment_reduce with its gradient, as in halfgnn/ops/segment_reduce.py.
#include "function.h"

namespace halfgnn::autograd {
namespace {

struct SegmentReduce {
  static constexpr const char* kName = "segment_reduce";
  static constexpr size_t kDifferentiable = 1;
  static constexpr const char* kSchema =
      "segment_reduce(Tensor offsets, Tensor value, str reduce) -> (Tensor out, Tensor arg)";
  enum Place : size_t { kOffsets, kValue, kReduce, kArg, kRows };

  static std::vector<size_t> operands() { return {kValue}; }
  static bool is_checked(size_t) { return true; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::segment_reduce");
    return call(op, x);
  }

  static void keep(Values& x, const Values& results) {
    const std::string& reduce = x[kReduce].toStringRef();
    x.push_back(reduce == "max" || reduce == "min" ? results[1] : IValue());
    x.emplace_back(x[kValue].toTensor().sym_size(0));
    x[kValue] = IValue();
  }

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& /*needs*/) {
    static const c10::OperatorHandle op = operator_named("halfgnn::segment_reduce_backward");
    return tensors_of(call(op, {x[kOffsets], grads[0], x[kArg], x[kReduce], x[kRows]}));
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(halfgnn_autograd, m) { define<SegmentReduce>(m); }

}  // namespace halfgnn::autograd
