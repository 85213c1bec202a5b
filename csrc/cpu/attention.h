// The fused attentions on the CPU: passes of kernels/attention/passes.h, rows divided among threads. No result depends
// on the number of threads.
#pragma once

#include "../core/attention.h"

namespace halfgnn::cpu {

void gat_attention(const GatArgs& args);
void gat_attention_backward(const GatArgs& args);
void pair_attention(const PairAttentionArgs& args);
void pair_attention_backward(const PairAttentionArgs& args);

}  // namespace halfgnn::cpu
