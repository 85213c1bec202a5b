// The forward of pair attentions. A tile is swept twice: once for logits, and once, while the gathered rows are
// still in the first-level cache, for the sums of rows weighted by their softmax.
#pragma once

#include "dot_edges.h"
#include "dropout.h"
#include "leaky_edges.h"
#include "pair_score.h"
#include "row_softmax.h"

namespace halfgnn::HALFGNN_ISA {

template <class B, class Score, class Edges>
class PairForward {
  static constexpr bool kDotEdges = Edges::kAny && Score::kDot, kLeakyEdges = Edges::kAny && !Score::kDot;
  using Acc = typename B::Acc;

 public:
  PairForward(const PairPass& pass, int64_t row_begin, int64_t row_end)
      : pass_(pass),
        blocks_(pass.args.heads, pass.args.dim),
        rows_(pass),
        score_(blocks_, pass),
        tile_(pass.topology(), pass.args.heads, rows_.tile_edges(pass.args.heads, Edges::row_bytes(pass)), row_begin,
              row_end),
        softmax_(tile_),
        scratch_(tile_, blocks_),
        edges_(blocks_, pass, tile_) {}

  void run() {
    while (tile_.next()) {
      score_tile();
      const Acc* used = weigh();
      tile_.each_row([&](int64_t row, int64_t first, int64_t last) {
        softmax_.add(row, scratch_.weights);
        if (tile_.starts) scratch_.sum.start();
        add_edges<false, B, 1>(blocks_, tile_, rows_.col_value, first, last, {used}, {&scratch_.sum});
        if constexpr (kDotEdges) edges_.add_values(tile_, first, last, used, &scratch_.sum);
        if (tile_.finishes) store_row(row);
      });
    }
  }

 private:
  struct Scratch {
    // How many values there are of a tile's entries, and of a row of sums.
    int64_t entries, row;
    Scratch(const EdgeTile& tile, const Blocks<B>& blocks) : entries(tile.capacity()), row(blocks.workspace()) {}

    Buffer<Acc> weights{entries};  // logits; then exp(l_e - maximum)
    Buffer<Acc> kept{entries};     // weights after dropout
    Buffer<Acc> score{row};        // the row's own
    RunningSum<Acc> sum{row};
  };

  HALFGNN_INLINE void score_tile() {
    Scratch& s = scratch_;
    clear_padding(tile_, s.weights.get());
    if constexpr (Edges::kAny) edges_.load(tile_);
    tile_.each_row([&](int64_t row, int64_t first, int64_t last) {
      if (tile_.starts && first < last) load_own(blocks_, rows_.row_score + row * rows_.len, s.score.get());
      if constexpr (kLeakyEdges) {
        if (edges_.has_rows())
          return score_edges<true, false>(blocks_, score_, tile_, rows_.col_score, rows_.next(), first, last,
                                          s.score.get(), s.weights.get(), edges_.rows());
      }
      score_edges<false, false>(blocks_, score_, tile_, rows_.col_score, rows_.next(), first, last, s.score.get(),
                                s.weights.get());
      if constexpr (kDotEdges) {
        if (tile_.starts && first < last) edges_.begin_row(tile_, row);
        edges_.add_scores(tile_, row, first, last, s.score.get(), s.weights.get());
      }
    });
  }
  // Logits become weights, up to the factor 1 / sum of a row. Returns the weights after dropout.
  HALFGNN_INLINE const Acc* weigh() {
    Scratch& s = scratch_;
    if constexpr (Score::kDot) scale_entries(tile_.padded(), score_.scale, s.weights.get());
    if constexpr (Edges::kAny) edges_.add_bias(tile_, s.weights.get());
    if (const Acc* factor = softmax_.subtract_maximum(s.weights)) {
      s.sum.rescale(pass_.args.heads, factor);
      if constexpr (kDotEdges) edges_.rescale(factor);
    }
    exp_entries(s.weights.get(), tile_.padded());
    return after_dropout(pass_.args.dropout, tile_, s.weights.get(), s.kept.get());
  }
  HALFGNN_INLINE void store_row(int64_t row) {
    const Acc* factor = softmax_.finish(row, pass_.args.lse);
    Acc* sums = scratch_.sum.finish();
    if constexpr (kDotEdges) {
      if (edges_.store(tile_, row, sums, factor)) return;
    }
    store_precise(blocks_, sums, factor, pass_.args.out, row);
  }

  const PairPass& pass_;
  const HeadBlocks<B> blocks_;
  const PairRows<B> rows_;
  const Score score_;
  EdgeTile tile_;
  RowSoftmax<Acc> softmax_;
  Scratch scratch_;
  Edges edges_;
};

}  // namespace halfgnn::HALFGNN_ISA
