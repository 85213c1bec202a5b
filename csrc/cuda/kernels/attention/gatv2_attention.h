// Attention with logits as in GATv2.
#pragma once

#include "../../../core/attention.h"
#include "../core/launch.h"

namespace halfgnn::cuda {

size_t gatv2_attention_workspace(const Gatv2Args& args);
cudaError_t gatv2_attention(const Gatv2Args& args, const Launch& launch);

size_t gatv2_attention_backward_workspace(const Gatv2Args& args);
cudaError_t gatv2_attention_backward(const Gatv2Args& args, const Launch& launch);

}  // namespace halfgnn::cuda
