// The raw operators carry no derivative of their own: halfgnn/ops puts autograd Functions on top. Differentiating one
// directly raises "derivative for halfgnn::... is not implemented" and does not give a silent zero.

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

namespace {

// gather_rows returns nothing through which a derivative could raise that error, so it raises at once.
void refuse_gradients(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!values[i].isTensor()) continue;
    const auto& value = values[i].toTensor();
    TORCH_CHECK_VALUE(!value.requires_grad() || !at::GradMode::is_enabled(), arguments[i].name(),
                      " requires grad, and ", op.schema().name(),
                      " has no derivative: detach it, or call it under torch.no_grad()");
    TORCH_CHECK_NOT_IMPLEMENTED(!value._fw_grad(/*level=*/0).defined(), "Trying to use forward AD with ",
                                op.schema().name(), ", which has no derivative: give it the primal of ",
                                arguments[i].name());
  }
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

void count_writes(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) values[i].toTensor().unsafeGetTensorImpl()->bump_version();
  }
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(halfgnn, Autograd, m) {
  for (const char* name : {"gspmm",
                           "gspmm_backward",
                           "code_sum",
                           "coo_softmax",
                           "coo_softmax_backward",
                           "coo_sum",
                           "coo_sum_backward",
                           "copy_u_reduce",
                           "copy_u_reduce_backward",
                           "gsddmm",
                           "gsddmm_backward",
                           "u_add_v_add_e",
                           "gated_sum",
                           "gated_sum_backward",
                           "edge_network",
                           "edge_network_backward",
                           "edge_softmax",
                           "edge_softmax_backward",
                           "segment_reduce",
                           "segment_reduce_backward",
                           "gat_attention",
                           "gat_attention_backward",
                           "head_logits",
                           "head_logits_backward",
                           "gatv2_attention",
                           "gatv2_attention_backward",
                           "dot_attention",
                           "dot_attention_backward"}) {
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
  m.impl("gather_rows", torch::CppFunction::makeFromBoxedFunction<&refuse_gradients>());
}

// A tensor that an operator writes to gets a new version, so that autograd refuses a backward that kept the old one.
TORCH_LIBRARY_IMPL(halfgnn, ADInplaceOrView, m) {
  m.impl("gather_rows", torch::CppFunction::makeFromBoxedFunction<&count_writes>());
}
