// What GAT's passes share: LeakyReLU of the scores s_e = attn_src[u] + attn_dst[v] + edge_logits[e].
#pragma once

#include "entries.h"
#include "head_blocks.h"
#include "passes.h"

namespace halfgnn::HALFGNN_ISA {

// LeakyReLU of n scores, with vectors: the signs of scores cannot be predicted.
template <class Acc>
HALFGNN_NOINLINE void leaky_entries(int64_t n, Acc slope, const Acc* scores, Acc* logits) {
  using B = EntryBlock<Acc>;
  const auto below = B::weight(slope);
  for (int64_t i = 0; i < n; i += B::kWidth) B::store_acc(leaky(B::load_acc(scores + i), below), logits + i);
}

}  // namespace halfgnn::HALFGNN_ISA
