// What GAT's passes share: LeakyReLU of the scores s_e = attn_src[u] + attn_dst[v] + edge_logits[e].
#pragma once

#include "entries.h"
#include "passes.h"

namespace halfgnn::HALFGNN_ISA {

template <class Acc>
HALFGNN_INLINE Acc leaky_relu(Acc score, Acc slope) {
  return score > 0 ? score : slope * score;
}

// scores += edge_logits of the tile's edges; row: workspace for one edge
template <class Acc>
HALFGNN_NOINLINE void add_edge_logits(const GatArgs& args, const EdgeTile& tile, Acc* row, Acc* scores) {
  const Operand logits{args.edge_logits, args.logit_type, args.heads, 0, Target::kEdge};
  const int64_t bytes = args.heads * size_of(args.logit_type);
  for (int64_t e = 0; e < tile.num_edges(); ++e) {
    if (tile.has(e + kPrefetchEdges)) prefetch_edge(args.edge_logits, tile.edge_id(e + kPrefetchEdges), bytes);
    decode(logits, tile.edge_id(e), row);
    for (int64_t h = 0; h < args.heads; ++h) scores[e * args.heads + h] += row[h];
  }
}

}  // namespace halfgnn::HALFGNN_ISA
