// The fused attentions on the CPU: passes of kernels/attention/passes.h, rows divided among threads. No result depends
// on the number of threads.
#pragma once

#include "../core/attention.h"

namespace halfgnn::cpu {

void gat_attention(const GatArgs& args);
void gat_attention_backward(const GatArgs& args);
void gatv2_attention(const Gatv2Args& args);
void gatv2_attention_backward(const Gatv2Args& args);
void dot_attention(const DotAttentionArgs& args);
void dot_attention_backward(const DotAttentionArgs& args);

}  // namespace halfgnn::cpu
