// The fused attentions on the CPU: passes of attention_table.h, rows divided among threads. No result depends on how
// many there are.
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
