// The forward of dot attention without terms of edges in two phases: the dots of queries and keys, and the attention of
// GAT with those as logits of edges. See plan/dot_phases.h.
#pragma once

#include "pair_attention.h"

namespace halfgnn::cuda {

bool takes_two_phases(const PairAttentionArgs& call);
size_t dot_attention_in_two_phases_workspace(const PairAttentionArgs& call);
cudaError_t dot_attention_in_two_phases(const PairAttentionArgs& call, const Launch& launch);

}  // namespace halfgnn::cuda
