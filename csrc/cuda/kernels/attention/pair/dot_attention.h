// Attention whose logits are scaled dots of queries and keys, and its gradients. Arguments, shapes and formulas:
// DotAttentionArgs in csrc/core/attention.h. What holds for every launcher: core/launch.h.
#pragma once

#include "../../../../core/attention.h"
#include "../../core/launch.h"

namespace halfgnn::cuda {

size_t dot_attention_workspace(const DotAttentionArgs& args);
cudaError_t dot_attention(const DotAttentionArgs& args, const Launch& launch);

size_t dot_attention_backward_workspace(const DotAttentionArgs& args);
cudaError_t dot_attention_backward(const DotAttentionArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
