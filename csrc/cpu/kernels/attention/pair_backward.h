// The backward of pair attentions: one pass over destinations and one over sources, and the records of the
// destinations that both read. A tile is swept twice: once for logits and <g, value>, and once, while the gathered rows
// are still in the first-level cache, for the gradients.
#pragma once

#include "dot_edges.h"
#include "dropout.h"
#include "leaky_edges.h"
#include "pair_score.h"

namespace halfgnn::HALFGNN_ISA {

// For destinations: delta = <g, out>, and the records.
template <class B>
void pair_node_rows(const PairNodes& nodes, int64_t node_begin, int64_t node_end) {
  using T = typename B::Element;
  using Acc = typename B::Acc;
  const int64_t heads = nodes.heads;
  const HeadBlocks<B> blocks(heads, nodes.dim);
  for (int64_t node = node_begin; node < node_end; ++node) {
    Acc* record = static_cast<Acc*>(nodes.records) + node * kPairRecord * heads;
    memcpy(record, static_cast<const Acc*>(nodes.lse) + node * heads, static_cast<size_t>(heads) * sizeof(Acc));
    dot_precise(blocks, static_cast<const T*>(nodes.grad) + node * blocks.len(), nodes.out, node, record + heads);
  }
}

// lse and delta of a tile's edges, and zeros up to a whole vector.
template <class Acc>
HALFGNN_NOINLINE void load_records(const EdgeTile& tile, const Acc* records, bool by_column, Acc* __restrict lse,
                                   Acc* __restrict delta) {
  with_columns(tile.heads, [&](auto columns) {
    const int64_t heads = columns.count();
    tile.each_row([&](int64_t row, int64_t first, int64_t last) {
      for (int64_t e = first; e < last; ++e) {
        if (by_column && tile.has(e + kPrefetchEdges))
          __builtin_prefetch(records + tile.column(e + kPrefetchEdges) * kPairRecord * heads);
        const Acc* record = records + (by_column ? tile.column(e) : row) * kPairRecord * heads;
        for (int64_t h = 0; h < heads; ++h) {
          lse[e * heads + h] = record[h];
          delta[e * heads + h] = record[heads + h];
        }
      }
    });
  });
  clear_padding(tile, lse);
  clear_padding(tile, delta);
}

// logits = a_e m_e, and dots = dl_e = a_e (m_e <g, value> - delta). factors: m_e, or null
template <class Acc>
HALFGNN_NOINLINE void pair_gradients(int64_t n, const Acc* __restrict lse, const Acc* __restrict delta,
                                     const Acc* __restrict factors, Acc* __restrict logits, Acc* __restrict dots) {
  for (int64_t i = 0; i < n; ++i) logits[i] -= lse[i];
  exp_entries(logits, n);
  if (factors) {
    for (int64_t i = 0; i < n; ++i) {
      dots[i] = logits[i] * (factors[i] * dots[i] - delta[i]);
      logits[i] *= factors[i];
    }
  } else {
    for (int64_t i = 0; i < n; ++i) dots[i] = logits[i] * (dots[i] - delta[i]);
  }
}

// Rows are destinations, or, if kBySrc, sources. Sources also have sums of weighted gradients.
template <class B, class Score, bool kBySrc, class Edges>
class PairBackward {
  static constexpr bool kDotEdges = Edges::kAny && Score::kDot, kLeakyEdges = Edges::kAny && !Score::kDot;
  static constexpr bool kRecords = Edges::kAny && kBySrc;  // the other pass has left records of edges
  using T = typename B::Element;
  using Acc = typename B::Acc;
  using V = typename B::V;

 public:
  PairBackward(const PairPass& pass, int64_t row_begin, int64_t row_end)
      : pass_(pass),
        blocks_(pass.args.heads, pass.args.dim),
        rows_(pass),
        score_(blocks_, pass),
        tile_(pass.topology(), pass.args.heads, rows_.tile_edges(pass.args.heads, Edges::row_bytes(pass)), row_begin,
              row_end),
        scratch_(tile_, blocks_),
        edges_(blocks_, pass, tile_) {}

  void run() {
    if constexpr (!Score::kDot) scratch_.attn_sum.start();
    while (tile_.next()) {
      if constexpr (kRecords) {
        edges_.load_entries(tile_, scratch_.weights.get(), scratch_.dots.get());
      } else {
        score_tile();
        weigh();
      }
      tile_.each_row([&](int64_t row, int64_t first, int64_t last) {
        add_row(row, first, last);
        if (tile_.finishes) store_row(row);
      });
      if constexpr (kLeakyEdges && !kBySrc) edges_.store_tile(tile_);
    }
    if constexpr (kLeakyEdges && !kBySrc) edges_.store_weight(&scratch_.attn_sum);
    if constexpr (!Score::kDot) store_sums(blocks_, scratch_.attn_sum.finish(), static_cast<Acc*>(pass_.partial_attn));
  }

 private:
  struct Scratch {
    // How many values there are of a tile's entries, and of a row of sums.
    int64_t entries, row;
    Scratch(const EdgeTile& tile, const Blocks<B>& blocks) : entries(tile.capacity()), row(blocks.workspace()) {}

    Buffer<Acc> weights{entries};                     // logits; then a_e m_e
    Buffer<Acc> dots{entries};                        // <g, value>; then dl_e
    Buffer<Acc> lse{entries}, delta{entries};         // of each edge's destination
    Buffer<Acc> factors{entries};                     // m_e
    Buffer<Acc> score{row}, value{row};               // the row's own
    RunningSum<Acc> score_sum{row};                   // of the gradient of its score
    RunningSum<Acc> value_sum{kBySrc ? row : 0};      // if kBySrc: of the weighted gradients
    RunningSum<Acc> attn_sum{Score::kDot ? 0 : row};  // kLeaky: over all rows
  };

  // Logits and <g, value> of the tile's edges.
  HALFGNN_INLINE void score_tile() {
    Scratch& s = scratch_;
    clear_padding(tile_, s.weights.get());
    clear_padding(tile_, s.dots.get());
    if constexpr (Edges::kAny) edges_.load(tile_);
    load_records(tile_, static_cast<const Acc*>(pass_.records), kBySrc, s.lse.get(), s.delta.get());
    tile_.each_row([&](int64_t row, int64_t first, int64_t last) {
      if (first == last) return;
      if (tile_.starts) {
        load_own(blocks_, rows_.row_score + row * rows_.len, s.score.get());
        load_own(blocks_, rows_.row_value + row * rows_.len, s.value.get());
      }
      score_row(first, last);
      dot_edges(blocks_, tile_, rows_.col_value, first, last, s.value.get(), s.dots.get());
      if constexpr (kDotEdges) {
        if (tile_.starts) edges_.begin_row(tile_, row);
        edges_.add_scores(tile_, row, first, last, s.score.get(), s.weights.get());
        edges_.add_gradient_dots(tile_, row, first, last, s.value.get(), s.dots.get());
      }
    });
  }
  HALFGNN_INLINE void score_row(int64_t first, int64_t last) {
    Scratch& s = scratch_;
    if constexpr (kLeakyEdges) {
      if (edges_.has_rows())
        return score_edges<true, true>(blocks_, score_, tile_, rows_.col_score, rows_.next(), first, last,
                                       s.score.get(), s.weights.get(), edges_.rows(), edges_.signs());
      return score_edges<false, true>(blocks_, score_, tile_, rows_.col_score, rows_.next(), first, last, s.score.get(),
                                      s.weights.get(), {}, edges_.signs());
    }
    score_edges<false, false>(blocks_, score_, tile_, rows_.col_score, rows_.next(), first, last, s.score.get(),
                              s.weights.get());
  }
  HALFGNN_INLINE void weigh() {
    Scratch& s = scratch_;
    const int64_t n = tile_.padded();
    if constexpr (Score::kDot) scale_entries(n, score_.scale, s.weights.get());
    if constexpr (Edges::kAny) edges_.add_bias(tile_, s.weights.get());
    if (pass_.args.dropout.seed) dropout_factors(pass_.args.dropout, tile_, s.factors.get());
    pair_gradients(n, s.lse.get(), s.delta.get(), pass_.args.dropout.seed ? s.factors.get() : nullptr, s.weights.get(),
                   s.dots.get());
    if constexpr (Edges::kAny) edges_.store_entries(tile_, s.weights.get(), s.dots.get());
  }
  HALFGNN_INLINE void add_row(int64_t row, int64_t first, int64_t last) {
    Scratch& s = scratch_;
    if (tile_.starts) {
      s.score_sum.start();
      if (kBySrc) s.value_sum.start();
      if (!Score::kDot && first < last) load_own(blocks_, rows_.row_score + row * rows_.len, s.score.get());
    }
    if constexpr (Score::kDot) {
      add_edges<kRecords, B, 1>(blocks_, tile_, rows_.col_score, first, last, {s.dots.get()}, {&s.score_sum});
    } else {
      derive_row(first, last);
    }
    if constexpr (kBySrc)
      add_edges<kRecords, B, 1>(blocks_, tile_, rows_.col_value, first, last, {s.weights.get()}, {&s.value_sum});
    if constexpr (kDotEdges && !kBySrc) add_edge_terms(row, first, last);
  }
  HALFGNN_INLINE void derive_row(int64_t first, int64_t last) {
    Scratch& s = scratch_;
    if constexpr (kLeakyEdges) {
      edges_.derive(first, last, s.dots.get(), &s.score_sum, &s.attn_sum);
    } else {
      derive_edges(blocks_, score_, tile_, rows_.col_score, first, last, s.score.get(), s.dots.get(), &s.score_sum);
    }
  }
  HALFGNN_INLINE void add_edge_terms(int64_t row, int64_t first, int64_t last) {
    Scratch& s = scratch_;
    if (edges_.needs_own() && tile_.starts && first < last) {
      load_own(blocks_, rows_.row_score + row * rows_.len, s.score.get());
      load_own(blocks_, rows_.row_value + row * rows_.len, s.value.get());
    }
    edges_.add_row(tile_, row, first, last, s.weights.get(), s.dots.get(), s.score.get(), s.value.get(), &s.score_sum);
  }
  HALFGNN_INLINE void store_row(int64_t row) {
    Scratch& s = scratch_;
    Acc* sums = s.score_sum.finish();
    const Acc* values = kBySrc ? s.value_sum.finish() : nullptr;
    auto store_score = [&](auto* grad_score) {
      blocks_.each([&](int64_t, int64_t slot, int64_t offset) {
        V grad = score_.finish(slot, B::load_acc(sums + slot));
        if (kBySrc && !Score::kDot) grad = add(grad, B::load_acc(values + slot));  // one row is both score and value
        B::store(grad, grad_score + row * rows_.len + offset);
      });
    };
    if constexpr (kDotEdges && !kBySrc) {
      edges_.store_row(tile_, row, sums);
      if (edges_.is_wide()) return store_score(static_cast<Acc*>(pass_.args.grad_query));
    }
    store_score(static_cast<T*>(kBySrc ? pass_.args.grad_key : pass_.args.grad_query));
    if constexpr (!Score::kDot) {
      if (!tile_.is_empty(row)) add_to_attn(sums);
      s.attn_sum.added(1);
    } else if constexpr (kBySrc) {
      store_sums(blocks_, values, static_cast<T*>(pass_.args.grad_value) + row * rows_.len);
    }
  }
  // The gradient of attn is the sum of own * sums over all rows of both passes, as LeakyReLU(z) = LeakyReLU'(z) z.
  HALFGNN_INLINE void add_to_attn(const Acc* sums) {
    const Acc* own = scratch_.score;
    Acc* total = scratch_.attn_sum.sum();
    blocks_.each([&](int64_t, int64_t slot, int64_t) {
      const V term = multiply(B::load_acc(own + slot), B::load_acc(sums + slot));
      B::store_acc(add(B::load_acc(total + slot), term), total + slot);
    });
  }

  const PairPass& pass_;
  const HeadBlocks<B> blocks_;
  const PairRows<B> rows_;
  const Score score_;
  EdgeTile tile_;
  Scratch scratch_;
  Edges edges_;
};

}  // namespace halfgnn::HALFGNN_ISA
