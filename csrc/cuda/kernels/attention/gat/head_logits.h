// Logits of nodes, <attn, feat> for each head, and their gradients on CUDA. See launch.h for what holds for all
// launchers.
#pragma once

#include "../../../../core/head_logits.h"
#include "../../core/launch.h"

namespace halfgnn::cuda {

// Any heads and dim. Vectors are read 16 bytes at a time if dim and all pointers allow it.
cudaError_t head_logits(const HeadLogitsArgs& args, const Launch& launch);

// The first logits alone, multiplied by `scale`. attn has the type of feat.
cudaError_t scaled_head_logits(const HeadLogitsArgs& args, float scale, const Launch& launch);

// Between 1 and 512; it follows from the number of values alone.
int64_t head_logits_parts(const HeadLogitsBackwardArgs& args);
cudaError_t head_logits_backward(const HeadLogitsBackwardArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
