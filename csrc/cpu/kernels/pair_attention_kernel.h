// GATv2's attention and dot attention on the CPU: a logit is a function of two rows of features. Included once for each
// instruction set (see attention_*.cpp).
//
// A tile is swept twice: once for logits, and once, while the gathered rows are still in the first-level cache, for
// sums of rows weighted by what the logits gave.
#pragma once

#include "attention_kernel.h"

namespace halfgnn {
namespace HALFGNN_ISA {

// <own, row>, which the logit is scale times
template <class B>
struct DotScore {
  using Acc = typename B::Acc;
  using V = typename B::V;
  static constexpr bool kDot = true;
  Acc scale;
  DotScore(const HeadBlocks<B>&, const PairPass& pass) : scale(static_cast<Acc>(pass.scale)) {}
  HALFGNN_INLINE V add_term(const HeadBlocks<B>& blocks, int64_t, int64_t b, V own, V row, V sum) const {
    return blocks.dot(b, own, row, sum);
  }
  // The derivative by `own`, summed over edges, of `sum`: that of dl_e row_e.
  HALFGNN_INLINE V finish(int64_t, V sum) const { return ::halfgnn::HALFGNN_ISA::scale(B::weight(scale), sum); }
};

// <attn, LeakyReLU(own + row)>
template <class B>
struct LeakyScore {
  using Acc = typename B::Acc;
  using V = typename B::V;
  static constexpr bool kDot = false;
  Acc slope;
  typename B::Weight slopes;
  Scratch<Acc> attn;  // in the order of lanes
  LeakyScore(const HeadBlocks<B>& blocks, const PairPass& pass)
      : slope(static_cast<Acc>(pass.slope)), slopes(B::weight(slope)), attn(blocks.workspace()) {
    load_own(blocks, static_cast<const typename B::Element*>(pass.attn), attn.get());
  }
  HALFGNN_INLINE V add_term(const HeadBlocks<B>& blocks, int64_t slot, int64_t b, V own, V row, V sum) const {
    return blocks.dot(b, B::load_acc(attn + slot), leaky(add(own, row), slopes), sum);
  }
  // The derivative by `own`, but for attn: dl where own + row > 0, else slope dl.
  struct Factor {
    typename B::Weight above, below;
  };
  HALFGNN_INLINE Factor factor(Acc dl) const { return {B::weight(dl), B::weight(dl * slope)}; }
  HALFGNN_INLINE V add_derivative(Factor factor, V own, V row, V sum) const {
    return add_by_sign(add(own, row), factor.above, factor.below, sum);
  }
  HALFGNN_INLINE V finish(int64_t slot, V sum) const { return multiply(B::load_acc(attn + slot), sum); }
};

// Logits of the edges [first, last) of a tile, but for a scale; `feat` has the rows at their columns, and `next` those
// that are read after them, null where they are the same.
template <class B, class Score>
HALFGNN_NOINLINE void score_edges(const HeadBlocks<B>& blocks, const Score& score, const EdgeTile& tile,
                                  const typename B::Element* feat, const typename B::Element* next, int64_t first,
                                  int64_t last, const typename B::Acc* own, typename B::Acc* logits) {
  using V = typename B::V;
  in_batches<B::kEdges>(first, last, [&](int64_t e, auto count) {
    constexpr int kCount = decltype(count)::value;
    const typename B::Element* rows[kCount];
    if (next) gather_rows<kCount>(tile, next, blocks.len(), true, e, rows);
    gather_rows<kCount>(tile, feat, blocks.len(), true, e, rows);
    for (int64_t h = 0; h < blocks.heads; ++h) {
      V sum[kCount] = {};
      for (int64_t b = 0; b < blocks.per_head; ++b) {
        const int64_t slot = blocks.slot(h, b), offset = blocks.offset(h, b);
        const V x = B::load_acc(own + slot);
        for (int k = 0; k < kCount; ++k) sum[k] = score.add_term(blocks, slot, b, x, B::load(rows[k] + offset), sum[k]);
      }
      store_lane_sums<B, kCount>(sum, logits + e * blocks.heads + h, blocks.heads);
    }
  });
}
// dots = <own, row of feat>
template <class B>
HALFGNN_NOINLINE void dot_edges(const HeadBlocks<B>& blocks, const EdgeTile& tile, const typename B::Element* feat,
                                int64_t first, int64_t last, const typename B::Acc* own, typename B::Acc* dots) {
  using V = typename B::V;
  in_batches<B::kEdges>(first, last, [&](int64_t e, auto count) {
    constexpr int kCount = decltype(count)::value;
    const typename B::Element* rows[kCount];
    gather_rows<kCount>(tile, feat, blocks.len(), false, e, rows);
    for (int64_t h = 0; h < blocks.heads; ++h) {
      V sum[kCount] = {};
      for (int64_t b = 0; b < blocks.per_head; ++b) {
        const V x = B::load_acc(own + blocks.slot(h, b));
        for (int k = 0; k < kCount; ++k) sum[k] = blocks.dot(b, x, B::load(rows[k] + blocks.offset(h, b)), sum[k]);
      }
      store_lane_sums<B, kCount>(sum, dots + e * blocks.heads + h, blocks.heads);
    }
  });
}
// sum += dl_e * derivative of the logit of e by `own`
template <class B, class Score>
HALFGNN_NOINLINE void derive_edges(const HeadBlocks<B>& blocks, const Score& score, const EdgeTile& tile,
                                   const typename B::Element* feat, int64_t first, int64_t last,
                                   const typename B::Acc* own, const typename B::Acc* dl,
                                   RunningSum<typename B::Acc>* sums) {
  using V = typename B::V;
  typename B::Acc* sum = sums->sum();
  in_batches<B::kEdges>(first, last, [&](int64_t e, auto count) {
    constexpr int kCount = decltype(count)::value;
    const typename B::Element* rows[kCount];
    gather_rows<kCount>(tile, feat, blocks.len(), false, e, rows);
    for (int64_t h = 0; h < blocks.heads; ++h) {
      typename Score::Factor factor[kCount];
      for (int k = 0; k < kCount; ++k) factor[k] = score.factor(dl[(e + k) * blocks.heads + h]);
      for (int64_t b = 0; b < blocks.per_head; ++b) {
        const int64_t slot = blocks.slot(h, b), offset = blocks.offset(h, b);
        const V x = B::load_acc(own + slot);
        V total = B::load_acc(sum + slot);
        for (int k = 0; k < kCount; ++k) total = score.add_derivative(factor[k], x, B::load(rows[k] + offset), total);
        B::store_acc(total, sum + slot);
      }
    }
    sums->added(kCount);
  });
}

template <class T>
HALFGNN_INLINE int64_t pair_tile_edges(const PairPass& pass) {
  const int64_t row_bytes = pass.heads * pass.dim * static_cast<int64_t>(sizeof(T));
  return tile_edges(pass.heads, pass.col_score == pass.col_value ? row_bytes : 2 * row_bytes);
}

template <class B, class Score>
void pair_forward_rows(const PairPass& pass, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  using Acc = typename B::Acc;
  const int64_t heads = pass.heads;
  const HeadBlocks<B> blocks(heads, pass.dim);
  const int64_t len = blocks.len();
  const T* row_score = static_cast<const T*>(pass.row_score);
  const T* col_score = static_cast<const T*>(pass.col_score);
  const T* col_value = static_cast<const T*>(pass.col_value);
  const bool two_rows = col_score != col_value;
  const Score score(blocks, pass);

  EdgeTile tile(pass.topology, heads, pair_tile_edges<T>(pass), row_begin, row_end);
  const int64_t pairs = tile.capacity();
  Scratch<Acc> weights(pairs), kept(pairs), own(blocks.workspace()), factor(heads);
  RowSoftmax<Acc> softmax(tile);
  RunningSum<Acc> sum(blocks.workspace());

  while (tile.next()) {
    const int64_t n = tile.padded();
    clear_padding(tile, weights.get());
    each_row(tile, [&](int64_t row, int64_t first, int64_t last) {
      if (tile.starts && first < last) load_own(blocks, row_score + row * len, own.get());
      score_edges(blocks, score, tile, col_score, two_rows ? col_value : nullptr, first, last, own.get(),
                  weights.get());
    });
    if constexpr (Score::kDot) scale_pairs(n, score.scale, weights.get());
    if (const Acc* rescale = softmax.subtract_maximum(weights.get())) sum.rescale(heads, rescale);
    exp_pairs(weights.get(), n);
    const Acc* used = weights;
    if (pass.dropout.seed) {
      dropout_factors(pass.dropout, tile, kept.get());
      multiply_pairs(n, weights.get(), kept.get());
      used = kept;
    }
    each_row(tile, [&](int64_t row, int64_t first, int64_t last) {
      softmax.add(row, weights.get());
      if (tile.starts) sum.start();
      add_edges<B, 1>(blocks, tile, col_value, false, first, last, {used}, {&sum});
      if (!tile.finishes) return;
      const bool empty = tile.starts && first == last;
      finish_softmax(softmax, heads, row, empty, factor.get(), pass.lse);
      store_precise(blocks, sum.finish(), factor.get(), pass.out, row);
    });
  }
}

// For the destinations: delta = <g, out>, and the records.
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
    each_row(tile, [&](int64_t row, int64_t first, int64_t last) {
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

// Logits become a_e m_e and dots dl_e = a_e (m_e <g, value> - delta). factors: m_e, or null
template <class Acc>
HALFGNN_NOINLINE void pair_gradients(int64_t n, const Acc* __restrict lse, const Acc* __restrict delta,
                                     const Acc* __restrict factors, Acc* __restrict logits, Acc* __restrict dots) {
  for (int64_t i = 0; i < n; ++i) logits[i] -= lse[i];
  exp_pairs(logits, n);
  if (factors) {
    for (int64_t i = 0; i < n; ++i) {
      dots[i] = logits[i] * (factors[i] * dots[i] - delta[i]);
      logits[i] *= factors[i];
    }
  } else {
    for (int64_t i = 0; i < n; ++i) dots[i] = logits[i] * (dots[i] - delta[i]);
  }
}

// Rows are destinations, or, where kBySrc, sources, which have sums of weighted gradients beside.
template <class B, class Score, bool kBySrc>
void pair_backward_rows(const PairPass& pass, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  using Acc = typename B::Acc;
  using V = typename B::V;
  const int64_t heads = pass.heads;
  const HeadBlocks<B> blocks(heads, pass.dim);
  const int64_t len = blocks.len();
  const T* row_score = static_cast<const T*>(pass.row_score);
  const T* row_value = static_cast<const T*>(pass.row_value);
  const T* col_score = static_cast<const T*>(pass.col_score);
  const T* col_value = static_cast<const T*>(pass.col_value);
  const bool two_rows = col_score != col_value;
  const Acc* records = static_cast<const Acc*>(pass.records);
  const Score score(blocks, pass);

  EdgeTile tile(pass.topology, heads, pair_tile_edges<T>(pass), row_begin, row_end);
  const int64_t pairs = tile.capacity();
  Scratch<Acc> weights(pairs), dots(pairs), lse(pairs), delta(pairs), kept(pairs);
  Scratch<Acc> own_score(blocks.workspace()), own_value(blocks.workspace());
  RunningSum<Acc> score_sum(blocks.workspace()), value_sum(kBySrc ? blocks.workspace() : 0);
  RunningSum<Acc> attn_sum(Score::kDot ? 0 : blocks.workspace());
  attn_sum.start();

  while (tile.next()) {
    const int64_t n = tile.padded();
    clear_padding(tile, weights.get());
    clear_padding(tile, dots.get());
    load_records(tile, records, kBySrc, lse.get(), delta.get());
    each_row(tile, [&](int64_t row, int64_t first, int64_t last) {
      if (first == last) return;
      if (tile.starts) {
        load_own(blocks, row_score + row * len, own_score.get());
        load_own(blocks, row_value + row * len, own_value.get());
      }
      score_edges(blocks, score, tile, col_score, two_rows ? col_value : nullptr, first, last, own_score.get(),
                  weights.get());
      dot_edges(blocks, tile, col_value, first, last, own_value.get(), dots.get());
    });
    if constexpr (Score::kDot) scale_pairs(n, score.scale, weights.get());
    if (pass.dropout.seed) dropout_factors(pass.dropout, tile, kept.get());
    pair_gradients(n, lse.get(), delta.get(), pass.dropout.seed ? kept.get() : nullptr, weights.get(), dots.get());

    each_row(tile, [&](int64_t row, int64_t first, int64_t last) {
      if (tile.starts) {
        score_sum.start();
        if (kBySrc) value_sum.start();
        if (!Score::kDot && first < last) load_own(blocks, row_score + row * len, own_score.get());
      }
      if constexpr (Score::kDot) {
        add_edges<B, 1>(blocks, tile, col_score, false, first, last, {dots.get()}, {&score_sum});
      } else {
        derive_edges(blocks, score, tile, col_score, first, last, own_score.get(), dots.get(), &score_sum);
      }
      if constexpr (kBySrc) add_edges<B, 1>(blocks, tile, col_value, false, first, last, {weights.get()}, {&value_sum});
      if (!tile.finishes) return;
      const Acc* sums = score_sum.finish();
      const Acc* values = kBySrc ? value_sum.finish() : nullptr;
      const bool empty = tile.starts && first == last;
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t b = 0; b < blocks.per_head; ++b) {
          const int64_t slot = blocks.slot(h, b), offset = row * len + blocks.offset(h, b);
          V grad = score.finish(slot, B::load_acc(sums + slot));
          if (kBySrc && Score::kDot) {
            B::store(B::load_acc(values + slot), static_cast<T*>(pass.grad_value) + offset);
          } else if (kBySrc) {
            grad = add(grad, B::load_acc(values + slot));
          }
          B::store(grad, static_cast<T*>(pass.grad_score) + offset);
          if (!Score::kDot && !empty) {
            // The gradient of attn is the sum of own * sums over all rows of both passes, as LR(z) = LR'(z) z.
            Acc* total = attn_sum.sum() + slot;
            B::store_acc(add(B::load_acc(total), multiply(B::load_acc(own_score + slot), B::load_acc(sums + slot))),
                         total);
          }
        }
      if (!Score::kDot) attn_sum.added(1);
    });
  }
  if constexpr (!Score::kDot) {
    const Acc* total = attn_sum.finish();
    Acc* out = static_cast<Acc*>(pass.partial_attn);
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t b = 0; b < blocks.per_head; ++b)
        B::store(B::load_acc(total + blocks.slot(h, b)), out + blocks.offset(h, b));
  }
}

}  // namespace HALFGNN_ISA
}  // namespace halfgnn
