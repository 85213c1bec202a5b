// GAT's forward. A tile takes three steps: scores and their LeakyReLU, weights by softmax and dropout, and the sums of
// the gathered rows.
#pragma once

#include "dropout.h"
#include "features.h"
#include "gat_scores.h"
#include "row_softmax.h"

namespace halfgnn::HALFGNN_ISA {

// s_e and LeakyReLU(s_e) of a tile's edges; own: workspace for a row's attn_dst
template <class Acc>
HALFGNN_NOINLINE void forward_scores(const GatArgs& args, const EdgeTile& tile, const Acc* attn_src, Acc* own,
                                     Acc* __restrict scores, Acc* __restrict logits) {
  const Operand attn_dst{args.attn_dst, args.logit_type, args.heads, 0, Target::kRow};
  with_columns(args.heads, [&](auto columns) {
    const int64_t heads = columns.count();
    tile.each_row([&](int64_t row, int64_t first, int64_t last) {
      if (first == last) return;
      decode_heads(attn_dst, row, own);
      for (int64_t e = first; e < last; ++e) {
        if (tile.has(e + kPrefetchEdges)) __builtin_prefetch(attn_src + tile.column(e + kPrefetchEdges) * heads);
        const Acc* other = attn_src + tile.column(e) * heads;
        for (int64_t h = 0; h < heads; ++h) scores[e * heads + h] = own[h] + other[h];
      }
    });
  });
  clear_padding(tile, scores);
  if (args.edge_logits) add_edge_values(args.edge_logits, args.logit_type, tile, scores);
  leaky_entries(tile.padded(), static_cast<Acc>(args.negative_slope), scores, logits);
}

// positive = used where s_e > 0, else 0; then scores = weights there
template <class Acc>
HALFGNN_NOINLINE void positive_weights(int64_t n, const Acc* __restrict used, const Acc* __restrict weights,
                                       Acc* __restrict scores, Acc* __restrict positive) {
  for (int64_t i = 0; i < n; ++i) {
    positive[i] = scores[i] > 0 ? used[i] : Acc(0);
    scores[i] = scores[i] > 0 ? weights[i] : Acc(0);
  }
}

// sums -= weight * others, with one weight per head
template <class B>
HALFGNN_NOINLINE void subtract_weighted(const Blocks<B>& blocks, const typename B::Acc* weight,
                                        const typename B::Acc* others, typename B::Acc* sums) {
  blocks.each([&](int64_t h, int64_t slot, int64_t) {
    const typename B::V other = scale(B::weight(weight[h]), B::load_acc(others + slot));
    B::store_acc(subtract(B::load_acc(sums + slot), other), sums + slot);
  });
}

// kPositive: also the sums over the edges with s_e > 0, for the backward (GatArgs::positive).
template <class B, bool kPositive>
class GatForward {
  using T = typename B::Element;
  using Acc = typename B::Acc;

 public:
  GatForward(const GatPass& pass, int64_t row_begin, int64_t row_end)
      : args_(pass.args),
        attn_src_(static_cast<const Acc*>(pass.attn_src)),
        blocks_(args_.heads, args_.dim),
        tile_(args_.topology, args_.heads, tile_edges(args_.heads, 0), row_begin, row_end),
        softmax_(tile_),
        scratch_(tile_, blocks_) {}

  void run() {
    while (tile_.next()) {
      forward_scores(args_, tile_, attn_src_, scratch_.own.get(), scratch_.scores.get(), scratch_.weights.get());
      const Acc* used = weigh();
      tile_.each_row([&](int64_t row, int64_t first, int64_t last) {
        add_row(row, first, last, used);
        if (tile_.finishes) store_row(row);
      });
    }
  }

 private:
  struct Scratch {
    // How many values there are of a tile's entries, of heads, and of a row of sums.
    int64_t entries, heads, row;
    Scratch(const EdgeTile& tile, const Blocks<B>& blocks)
        : entries(tile.capacity()), heads(tile.heads), row(blocks.workspace()) {}

    Buffer<Acc> scores{entries};                    // s_e; then, if kPositive, weights where s_e > 0
    Buffer<Acc> weights{entries};                   // LeakyReLU(s_e); then exp(l_e - maximum)
    Buffer<Acc> kept{entries};                      // weights after dropout
    Buffer<Acc> positive{kPositive ? entries : 0};  // those where s_e > 0
    Buffer<Acc> own{heads};                         // of one row, one per head
    Buffer<double> positive_weight{heads};
    RunningSum<Acc> sum{row}, positive_sum{kPositive ? row : 0};
  };

  // Logits become weights, up to the factor 1 / sum of a row. Returns the weights after dropout.
  HALFGNN_INLINE const Acc* weigh() {
    const int64_t n = tile_.padded();
    Acc* weights = scratch_.weights;
    if (const Acc* factor = softmax_.subtract_maximum(weights)) rescale(factor);
    exp_entries(weights, n);
    const Acc* used = after_dropout(args_.dropout, tile_, weights, scratch_.kept.get());
    if (kPositive) positive_weights(n, used, weights, scratch_.scores.get(), scratch_.positive.get());
    return used;
  }
  HALFGNN_INLINE void rescale(const Acc* factor) {
    scratch_.sum.rescale(args_.heads, factor);
    if (!kPositive) return;
    scratch_.positive_sum.rescale(args_.heads, factor);
    for (int64_t h = 0; h < args_.heads; ++h) scratch_.positive_weight[h] *= factor[h];
  }
  HALFGNN_INLINE void add_row(int64_t row, int64_t first, int64_t last, const Acc* used) {
    const T* feat = static_cast<const T*>(args_.feat);
    softmax_.add(row, scratch_.weights);
    if (tile_.starts) scratch_.sum.start();
    if constexpr (kPositive) {
      add_entries(tile_, first, last, scratch_.scores.get(), scratch_.positive_weight.get());
      if (tile_.starts) scratch_.positive_sum.start();
      add_edges<true, B, 2>(blocks_, tile_, feat, first, last, {used, scratch_.positive.get()},
                            {&scratch_.sum, &scratch_.positive_sum});
    } else {
      add_edges<true, B, 1>(blocks_, tile_, feat, first, last, {used}, {&scratch_.sum});
    }
  }
  HALFGNN_INLINE void store_row(int64_t row) {
    const Acc* factor = softmax_.finish(row, args_.lse);
    const Acc* total = scratch_.sum.finish();
    store_precise(blocks_, total, factor, args_.out, row);
    if constexpr (kPositive) {
      Acc* share = scratch_.own;  // of the weights that are positive
      for (int64_t h = 0; h < args_.heads; ++h)
        share[h] = static_cast<Acc>(scratch_.positive_weight[h] * softmax_.inverse(h));
      Acc* positive_total = scratch_.positive_sum.finish();
      subtract_weighted(blocks_, share, total, positive_total);
      store_precise(blocks_, positive_total, factor, {args_.positive, nullptr}, row);
    }
  }

  const GatArgs& args_;
  const Acc* attn_src_;
  const Blocks<B> blocks_;
  EdgeTile tile_;
  RowSoftmax<Acc> softmax_;
  Scratch scratch_;
};

}  // namespace halfgnn::HALFGNN_ISA
