// What GAT's passes share: LeakyReLU of the scores s_e = attn_src[u] + attn_dst[v] + edge_logits[e].
#pragma once

#include <type_traits>

#include "../blocks.h"
#include "entries.h"
#include "passes.h"

namespace halfgnn::HALFGNN_ISA {

// The entries of flat arrays, a vector at a time.
template <class Acc>
using EntryBlock = std::conditional_t<sizeof(Acc) == 4, Block<float, kLanes>, SingleBlock<double, double>>;

// LeakyReLU of n scores, with vectors: the signs of scores cannot be predicted.
template <class Acc>
HALFGNN_NOINLINE void leaky_entries(int64_t n, Acc slope, const Acc* scores, Acc* logits) {
  using B = EntryBlock<Acc>;
  const auto below = B::weight(slope);
  for (int64_t i = 0; i < n; i += B::kWidth) B::store_acc(leaky(B::load_acc(scores + i), below), logits + i);
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
