// Rows of features: gathered at the edges of a tile and summed; rows of sums stored and dotted.
#pragma once

#include "../../../core/attention.h"
#include "../running_sum.h"
#include "head_blocks.h"
#include "tile.h"

namespace halfgnn::HALFGNN_ISA {

// A row per edge of a tile, made for the tile alone.
template <class Acc>
struct TileRows {
  Acc* data;
  int64_t stride;
};

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

// How many vectors of a sum stay in registers while the edges of a run pass. Two sums of the same rows and what they
// are made of take most of 16 registers.
constexpr int kHeldVectors = 4;

// sums[n] += weights[n] * rows for C blocks of head `head`, from block `block` on, and the edges [first, last).
template <class B, int N, int C, bool kPrefetch>
HALFGNN_INLINE void add_blocks(const Blocks<B>& blocks, const EdgeTile& tile, const typename B::Element* feat,
                               int64_t head, int64_t block, int64_t first, int64_t last,
                               const typename B::Acc* const* weights, typename B::Acc* const* sums) {
  using T = typename B::Element;
  const int64_t slot = blocks.slot(head, block), len = blocks.len(), heads = blocks.heads;
  const T* part = feat + blocks.offset(head, block);
  typename B::V total[N][C];
  for (int n = 0; n < N; ++n)
    for (int c = 0; c < C; ++c) total[n][c] = B::load_acc(sums[n] + slot + c * B::kWidth);
  for (int64_t e = first; e < last; ++e) {
    if (kPrefetch) {
      const char* ahead = reinterpret_cast<const char*>(part + tile.column(e + kTileAhead) * len);
      for (size_t i = 0; i < C * B::kWidth * sizeof(T); i += 64) __builtin_prefetch(ahead + i);
    }
    const T* row = part + tile.column(e) * len;
    typename B::Weight w[N];
    for (int n = 0; n < N; ++n) w[n] = B::weight(weights[n][e * heads + head]);
    for (int c = 0; c < C; ++c) {
      const typename B::V x = B::load(row + c * B::kWidth);
      for (int n = 0; n < N; ++n) total[n][c] = multiply_add(w[n], x, total[n][c]);
    }
  }
  for (int n = 0; n < N; ++n)
    for (int c = 0; c < C; ++c) B::store_acc(total[n][c], sums[n] + slot + c * B::kWidth);
}

// The same for all blocks of the rows. The last block of a head, which may overlap its neighbour, is taken alone.
template <class B, int N, bool kPrefetch>
HALFGNN_NOINLINE void add_run(const Blocks<B> blocks, const EdgeTile& tile, const typename B::Element* feat,
                              int64_t first, int64_t last, const typename B::Acc* const* weights,
                              typename B::Acc* const* sums) {
  constexpr int kBlocks = B::kWidth > kLanes ? kHeldVectors / 2 : kHeldVectors;
  for (int64_t h = 0; h < blocks.heads; ++h) {
    int64_t b = 0;
    for (; (b + kBlocks) * B::kWidth <= blocks.dim; b += kBlocks)
      add_blocks<B, N, kBlocks, kPrefetch>(blocks, tile, feat, h, b, first, last, weights, sums);
    if constexpr (kBlocks > 2) {
      for (; (b + 2) * B::kWidth <= blocks.dim; b += 2)
        add_blocks<B, N, 2, kPrefetch>(blocks, tile, feat, h, b, first, last, weights, sums);
    }
    for (; b < blocks.per_head; ++b)
      add_blocks<B, N, 1, kPrefetch>(blocks, tile, feat, h, b, first, last, weights, sums);
  }
}

// sums[n] += weights[n] * rows of `feat`, for the edges [first, last): N sums of the same rows. Rows that come later
// are prefetched if kPrefetch is true: it is false for rows that the tile has read before.
template <bool kPrefetch, class B, int N>
HALFGNN_NOINLINE void add_edges(const Blocks<B>& blocks, const EdgeTile& tile, const typename B::Element* feat,
                                int64_t first, int64_t last, const typename B::Acc* const (&weights)[N],
                                RunningSum<typename B::Acc>* const (&sums)[N]) {
  typename B::Acc* sum[N];
  for (int n = 0; n < N; ++n) sum[n] = sums[n]->sum();
  for (int64_t e = first; e < last;) {
    const int64_t left = sums[0]->left_in_run(), end = last - e < left ? last : e + left;
    add_run<B, N, kPrefetch>(blocks, tile, feat, e, end, weights, sum);
    for (int n = 0; n < N; ++n) sums[n]->added(end - e);
    e = end;
  }
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

// out = factor * sums
template <class B>
HALFGNN_NOINLINE void store_wide(const Blocks<B>& blocks, const typename B::Acc* sums, const typename B::Acc* factor,
                                 typename B::Acc* out) {
  blocks.each([&](int64_t h, int64_t slot, int64_t offset) {
    B::store(scale(B::weight(factor[h]), B::load_acc(sums + slot)), out + offset);
  });
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
