// The logits of pair attentions, as functions of two rows of features, and their derivatives.
#pragma once

#include "features.h"
#include "passes.h"
#include "signs.h"

namespace halfgnn::HALFGNN_ISA {

// ---- the two functions: own is the row's features, row those at an edge's column

// logit = scale <own, row>. add_term adds up the dot product alone.
template <class B>
struct DotScore {
  using Acc = typename B::Acc;
  using V = typename B::V;
  static constexpr bool kDot = true;
  Acc scale;
  DotScore(const HeadBlocks<B>&, const PairPass& pass) : scale(static_cast<Acc>(pass.args.factor)) {}
  HALFGNN_INLINE V add_term(const HeadBlocks<B>& blocks, int64_t, int64_t b, V own, V row, V sum) const {
    return blocks.dot(b, own, row, sum);
  }
  // The derivative by `own`, summed over edges, if `sum` is the sum of dl_e row_e.
  HALFGNN_INLINE V finish(int64_t, V sum) const { return ::halfgnn::HALFGNN_ISA::scale(B::weight(scale), sum); }
};

// logit = <attn, LeakyReLU(own + row)>
template <class B>
struct LeakyScore {
  using Acc = typename B::Acc;
  using V = typename B::V;
  static constexpr bool kDot = false;
  Acc slope;
  typename B::Weight slopes;
  Buffer<Acc> attn;  // laid out like a row of sums
  LeakyScore(const HeadBlocks<B>& blocks, const PairPass& pass)
      : slope(static_cast<Acc>(pass.args.factor)), slopes(B::weight(slope)), attn(blocks.workspace()) {
    load_own(blocks, static_cast<const typename B::Element*>(pass.args.attn), attn.get());
  }
  HALFGNN_INLINE V add_term(const HeadBlocks<B>& blocks, int64_t slot, int64_t b, V own, V row, V sum) const {
    return add_leaky(blocks, slot, b, add(own, row), sum);
  }
  HALFGNN_INLINE V add_leaky(const HeadBlocks<B>& blocks, int64_t slot, int64_t b, V z, V sum) const {
    return blocks.dot(b, B::load_acc(attn + slot), leaky(z, slopes), sum);
  }
  // The derivative by `own`, without its factor attn: dl where own + row > 0, else slope dl.
  struct Factor {
    typename B::Weight above, below;
  };
  HALFGNN_INLINE Factor factor(Acc dl) const { return {B::weight(dl), B::weight(dl * slope)}; }
  HALFGNN_INLINE V add_derivative(Factor factor, V own, V row, V sum) const {
    return add_by_sign(add(own, row), factor.above, factor.below, sum);
  }
  HALFGNN_INLINE V finish(int64_t slot, V sum) const { return multiply(B::load_acc(attn + slot), sum); }
};

// ---- the edges of a tile

// The vector at `offset` of a row. kMore: with that of `edge` at `slot`.
template <class B, bool kMore>
HALFGNN_INLINE typename B::V load_with(const typename B::Element* row, int64_t offset,
                                       const TileRows<typename B::Acc>& more, int64_t edge, int64_t slot) {
  const typename B::V x = B::load(row + offset);
  if constexpr (kMore) return add(x, B::load_acc(more.data + edge * more.stride + slot));
  return x;
}

// Logits of the edges [first, last) of a tile, not yet scaled. `feat` has the rows at their columns. `next` has the
// rows that are read after those, and is null if they are the same. kMore: `more` is added to the rows. kSigns: `signs`
// of the sums of both rows are stored.
template <bool kMore, bool kSigns, class B, class Score>
HALFGNN_NOINLINE void score_edges(const HeadBlocks<B>& blocks, const Score& score, const EdgeTile& tile,
                                  const typename B::Element* feat, const typename B::Element* next, int64_t first,
                                  int64_t last, const typename B::Acc* own, typename B::Acc* logits,
                                  TileRows<typename B::Acc> more = {}, TileSigns signs = {}) {
  using V = typename B::V;
  in_batches<B::kEdges>(first, last, [&](int64_t e, auto count) {
    constexpr int kCount = decltype(count)::value;
    const typename B::Element* rows[kCount];
    if (next) gather_rows<kCount>(tile, next, blocks.len(), true, e, rows);
    gather_rows<kCount>(tile, feat, blocks.len(), true, e, rows);
    for (int64_t h = 0; h < blocks.heads; ++h) {
      V sum[kCount] = {};
      [[maybe_unused]] SignWriter<B, kCount> of_head(signs, e, h);
      for (int64_t b = 0; b < blocks.per_head; ++b) {
        const int64_t slot = blocks.slot(h, b), offset = blocks.offset(h, b);
        const V x = B::load_acc(own + slot);
        for (int k = 0; k < kCount; ++k) {
          const V row = load_with<B, kMore>(rows[k], offset, more, e + k, slot);
          if constexpr (kSigns) {
            const V z = add(x, row);
            of_head.add(k, b, z);
            sum[k] = score.add_leaky(blocks, slot, b, z, sum[k]);
          } else {
            sum[k] = score.add_term(blocks, slot, b, x, row, sum[k]);
          }
        }
        if constexpr (kSigns) of_head.finish(b, b + 1 == blocks.per_head);
      }
      store_lane_sums<B, kCount>(sum, logits + e * blocks.heads + h, blocks.heads);
    }
  });
}
// dots = <own, row of feat> for the edges [first, last)
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
// sum += dl_e * derivative of the logit of e by `own`, for the edges [first, last)
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

// The rows of features of a pass.
template <class B>
struct PairRows {
  using T = typename B::Element;
  const T *row_score, *row_value, *col_score, *col_value;
  int64_t len;
  explicit PairRows(const PairPass& pass)
      : row_score(static_cast<const T*>(pass.by_src ? pass.args.key : pass.args.query)),
        row_value(static_cast<const T*>(pass.by_src ? pass.args.value : pass.args.grad)),
        col_score(static_cast<const T*>(pass.by_src ? pass.args.query : pass.args.key)),
        col_value(static_cast<const T*>(pass.by_src ? pass.args.grad : pass.args.value)),
        len(pass.args.heads * pass.args.dim) {}
  // What is read after col_score; null if it is the same.
  HALFGNN_INLINE const T* next() const { return col_score == col_value ? nullptr : col_value; }
  // more_bytes: of other rows per edge
  int64_t tile_edges(int64_t heads, int64_t more_bytes) const {
    const int64_t row_bytes = len * static_cast<int64_t>(sizeof(T));
    return HALFGNN_ISA::tile_edges(heads, (next() ? 2 * row_bytes : row_bytes) + more_bytes);
  }
};

}  // namespace halfgnn::HALFGNN_ISA
