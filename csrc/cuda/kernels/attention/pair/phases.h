// Dot attention without terms of edges in phases of one gathered matrix each, by the kernels of other operators: see
// plan/dot_phases.h.
#pragma once

#include "pair_attention.h"

namespace halfgnn::cuda {

// Forward.
bool takes_phases(const PairAttentionArgs& call);
size_t dot_attention_in_phases_workspace(const PairAttentionArgs& call);
cudaError_t dot_attention_in_phases(const PairAttentionArgs& call, const Launch& launch);

bool backward_takes_phases(const PairAttentionArgs& call);
size_t dot_attention_backward_in_phases_workspace(const PairAttentionArgs& call);
cudaError_t dot_attention_backward_in_phases(const PairAttentionArgs& call, const Launch& launch);

}  // namespace halfgnn::cuda
