// Attention whose logits are those of GATv2, and its gradients. Arguments, shapes and formulas: Gatv2Args in
// csrc/core/attention.h. What holds for every launcher: core/launch.h.
#pragma once

#include "../../../../core/attention.h"
#include "../../core/launch.h"

namespace halfgnn::cuda {

size_t gatv2_attention_workspace(const Gatv2Args& args);
cudaError_t gatv2_attention(const Gatv2Args& args, const Launch& launch);

size_t gatv2_attention_backward_workspace(const Gatv2Args& args);
cudaError_t gatv2_attention_backward(const Gatv2Args& args, const Launch& launch);

}  // namespace halfgnn::cuda
