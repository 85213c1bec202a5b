// The raw operators carry no derivative of their own: halfgnn/ops puts autograd Functions on top. Differentiating one
// directly, or a backward a second time, raises "derivative for halfgnn::... is not implemented" instead of giving a
// silent zero.

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

TORCH_LIBRARY_IMPL(halfgnn, Autograd, m) {
  for (const char* name :
       {"gspmm", "gspmm_backward", "gsddmm", "gsddmm_backward", "edge_softmax", "edge_softmax_backward",
        "segment_reduce", "segment_reduce_backward", "gat_attention", "gat_attention_backward", "gatv2_attention",
        "gatv2_attention_backward", "dot_attention", "dot_attention_backward"}) {
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}
