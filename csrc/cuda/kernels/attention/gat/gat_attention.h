// Attention of GAT and its gradients. Both gather one row of features per edge. Arguments, shapes and formulas: GatArgs
// in csrc/core/attention.h. What holds for every launcher: core/launch.h.
#pragma once

#include "../../../../core/attention.h"
#include "../../core/launch.h"

namespace halfgnn::cuda {

size_t gat_attention_workspace(const GatArgs& args);
cudaError_t gat_attention(const GatArgs& args, const Launch& launch);

size_t gat_attention_backward_workspace(const GatArgs& args);
cudaError_t gat_attention_backward(const GatArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
