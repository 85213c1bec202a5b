// head_logits with its gradients, as in halfgnn/ops/head_logits.py.
#include "function.h"

namespace halfgnn::autograd {
namespace {

struct HeadLogits {
  static constexpr const char* kName = "head_logits";
  static constexpr size_t kDifferentiable = 3;
  static constexpr const char* kSchema =
      "head_logits(Tensor feat, Tensor attn, Tensor? more_attn) -> (Tensor feat, Tensor logits, Tensor more_logits)";
  enum Place : size_t { kFeat, kAttn, kMoreAttn };
  enum Result : size_t { kUpstream, kLogits, kMoreLogits };

  static std::vector<size_t> operands() { return {kFeat, kAttn, kMoreAttn}; }
  static bool is_checked(size_t) { return true; }

  static Values forward(const Values& x) {
    static const c10::OperatorHandle op = operator_named("halfgnn::head_logits");
    const at::Tensor feat = x[kFeat].toTensor();
    Values results = call(op, x);
    results.insert(results.begin(), feat.view_as(feat));
    return results;
  }

  static void keep(Values& /*x*/, const Values& /*results*/) {}

  static Tensors gradients(const Values& x, const Tensors& grads, const Needs& needs) {
    if (!grads[kLogits].defined() && !grads[kMoreLogits].defined()) return {grads[kUpstream], {}, {}};
    if (std::any_of(grads.begin(), grads.end(), is_batched)) return gradients_by_python(kName, x, grads, needs);
    static const c10::OperatorHandle op = operator_named("halfgnn::head_logits_backward");
    const bool need_attns = needs[kAttn] || needs[kMoreAttn];
    const Values results =
        call(op, {x[kFeat], x[kAttn], x[kMoreAttn], value_of(grads[kLogits]), value_of(grads[kMoreLogits]),
                  value_of(grads[kUpstream]), bool(needs[kFeat]), need_attns});
    if (!need_attns) return {results[0].toTensor(), {}, {}};
    const Tensors of_attns = results[1].toTensor().unbind();
    return {results[0].toTensor(), of_attns.front(), of_attns.back()};
  }

 private:
  static bool is_batched(const at::Tensor& grad) {
    return grad.defined() && grad.key_set().has(c10::DispatchKey::FuncTorchBatched);
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(halfgnn_autograd, m) { define<HeadLogits>(m); }

}  // namespace halfgnn::autograd
