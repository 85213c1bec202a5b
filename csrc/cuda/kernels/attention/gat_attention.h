// Attention of GAT and its gradients (see csrc/core/attention.h). Both gather one row of features an edge.
#pragma once

#include "../../../core/attention.h"
#include "../core/launch.h"

namespace halfgnn::cuda {

size_t gat_attention_workspace(const GatArgs& args);
cudaError_t gat_attention(const GatArgs& args, const Launch& launch);

size_t gat_attention_backward_workspace(const GatArgs& args);
cudaError_t gat_attention_backward(const GatArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
