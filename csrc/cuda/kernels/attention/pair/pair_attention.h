// GATv2 and dot attention, and their gradients. Arguments, shapes and formulas: PairAttentionArgs in
// csrc/core/attention.h. What holds for every launcher: core/launch.h.
#pragma once

#include "../../../../core/attention.h"
#include "../../core/launch.h"

namespace halfgnn::cuda {

// The constants of a logit.
struct PairLogit {
  const void* attn;  // of GATv2: (heads, dim)
  float linear;
  float absolute;  // of GATv2
  float ratio;     // of GATv2: linear / absolute
  float slope;     // of GATv2: linear - absolute, as it was given
};

// Which terms of edges there are kernels for, and of which heads: see Backend in csrc/core/backend.h.
extern const EdgeTermLimits kEdgeTermLimits;
bool has_edge_terms(const EdgeTerms& terms, DType type, int64_t dim);

size_t pair_attention_workspace(const PairAttentionArgs& args);
cudaError_t pair_attention(const PairAttentionArgs& args, const Launch& launch);

size_t pair_attention_backward_workspace(const PairAttentionArgs& args);
cudaError_t pair_attention_backward(const PairAttentionArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
