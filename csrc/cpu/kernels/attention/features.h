// Rows of features: gathered at the edges of a tile and summed; rows of sums stored and dotted.
#pragma once

#include "../../../core/attention.h"
#include "../running_sum.h"
#include "head_blocks.h"
#include "tile.h"

namespace halfgnn::HALFGNN_ISA {

// rows = those of `feat` at the columns of K edges. The rows of kPrefetchEdges later are prefetched if `prefetch` is
// true: it is false for rows that the tile has read before.
template <int K, class T>
HALFGNN_INLINE void gather_rows(const EdgeTile& tile, const T* feat, int64_t len, bool prefetch, int64_t edge,
                                const T** rows) {
  for (int k = 0; k < K; ++k) {
    rows[k] = feat + tile.column(edge + k) * len;
    const int64_t ahead = edge + k + kPrefetchEdges;
    if (prefetch && tile.has(ahead)) prefetch_row(feat + tile.column(ahead) * len, len);
  }
}

// sums[n] += weights[n][k] * row_k for K rows: N sums of the same rows, with one weight per head. Row k's weights begin
// at weights[n] + k * heads.
template <class B, int N, int K>
HALFGNN_INLINE void add_weighted(const Blocks<B>& blocks, const typename B::Element* const* rows,
                                 const typename B::Acc* const* weights, typename B::Acc* const* sums) {
  using V = typename B::V;
  for (int64_t h = 0; h < blocks.heads; ++h) {
    typename B::Weight w[N][K];
    for (int n = 0; n < N; ++n)
      for (int k = 0; k < K; ++k) w[n][k] = B::weight(weights[n][k * blocks.heads + h]);
    for (int64_t b = 0; b < blocks.per_head; ++b) {
      const int64_t slot = blocks.slot(h, b), offset = blocks.offset(h, b);
      V total[N];
      for (int n = 0; n < N; ++n) total[n] = B::load_acc(sums[n] + slot);
      for (int k = 0; k < K; ++k) {
        const V x = B::load(rows[k] + offset);
        for (int n = 0; n < N; ++n) total[n] = multiply_add(w[n][k], x, total[n]);
      }
      for (int n = 0; n < N; ++n) B::store_acc(total[n], sums[n] + slot);
    }
  }
}

// sums[n] += weights[n] * rows of `feat`, for the edges [first, last): N sums of the same rows.
template <class B, int N>
HALFGNN_NOINLINE void add_edges(const Blocks<B>& blocks, const EdgeTile& tile, const typename B::Element* feat,
                                bool prefetch, int64_t first, int64_t last, const typename B::Acc* const (&weights)[N],
                                RunningSum<typename B::Acc>* const (&sums)[N]) {
  using Acc = typename B::Acc;
  const int64_t len = blocks.heads * blocks.dim;
  Acc* sum[N];
  for (int n = 0; n < N; ++n) sum[n] = sums[n]->sum();
  in_batches<B::kEdges>(first, last, [&](int64_t e, auto count) {
    constexpr int kCount = decltype(count)::value;
    const typename B::Element* rows[kCount];
    const Acc* w[N];
    gather_rows<kCount>(tile, feat, len, prefetch, e, rows);
    for (int n = 0; n < N; ++n) w[n] = weights[n] + e * blocks.heads;
    add_weighted<B, N, kCount>(blocks, rows, w, sum);
    for (int n = 0; n < N; ++n) sums[n]->added(kCount);
  });
}

// Row `row` of out = factor * sums, with what rounding it lost if that is wanted.
template <class B>
HALFGNN_NOINLINE void store_precise(const Blocks<B> blocks, const typename B::Acc* sums, const typename B::Acc* factor,
                                    const Precise& out, int64_t row) {
  using T = typename B::Element;
  T* value = static_cast<T*>(out.value) + row * blocks.len();
  T* residual = out.residual ? static_cast<T*>(out.residual) + row * blocks.len() : nullptr;
  for (int64_t h = 0; h < blocks.heads; ++h)
    for (int64_t b = 0; b < blocks.per_head; ++b) {
      const int64_t offset = blocks.offset(h, b);
      const typename B::V x = scale(B::weight(factor[h]), B::load_acc(sums + blocks.slot(h, b)));
      B::store(x, value + offset);
      if (residual) B::store(finite_or_zero(subtract(x, B::load(value + offset))), residual + offset);
    }
}

template <class B, class S>
HALFGNN_NOINLINE void store_sums(const Blocks<B>& blocks, const typename B::Acc* sums, S* out) {
  blocks.each([&](int64_t, int64_t slot, int64_t offset) { B::store(B::load_acc(sums + slot), out + offset); });
}

// dots[head] = <sums, row>
template <class B>
HALFGNN_NOINLINE void dot_sums(const HeadBlocks<B>& blocks, const typename B::Acc* sums, const typename B::Element* row,
                               typename B::Acc* dots) {
  for (int64_t h = 0; h < blocks.heads; ++h) {
    typename B::V sum = {};
    for (int64_t b = 0; b < blocks.per_head; ++b)
      sum = blocks.dot(b, B::load_acc(sums + blocks.slot(h, b)), B::load(row + blocks.offset(h, b)), sum);
    dots[h] = B::sum(sum);
  }
}

// dots[head] = <x, row `row` of y>, where y is value + residual.
template <class B>
HALFGNN_NOINLINE void dot_precise(const HeadBlocks<B>& blocks, const typename B::Element* x, const Precise& y,
                                  int64_t row, typename B::Acc* dots) {
  using T = typename B::Element;
  using V = typename B::V;
  const T* value = static_cast<const T*>(y.value) + row * blocks.len();
  const T* residual = y.residual ? static_cast<const T*>(y.residual) + row * blocks.len() : nullptr;
  for (int64_t h = 0; h < blocks.heads; ++h) {
    V sum = {};
    for (int64_t b = 0; b < blocks.per_head; ++b) {
      const int64_t offset = blocks.offset(h, b);
      V own = B::load(value + offset);
      if (residual) own = add(own, B::load(residual + offset));
      sum = blocks.dot(b, B::load(x + offset), own, sum);
    }
    dots[h] = B::sum(sum);
  }
}

}  // namespace halfgnn::HALFGNN_ISA
