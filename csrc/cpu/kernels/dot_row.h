// Dot products of one row with many others, by blocks.
#pragma once

#include <type_traits>

#include "blocks.h"
#include "buffer.h"
#include "rows.h"

namespace halfgnn::HALFGNN_ISA {

// A node's row as fp32 blocks in lane order, ready to be dotted. The lanes that a last block shares with its neighbour
// are zero. The other side's must be cleared too (mask()): zero times an infinity there would be NaN.
template <class B, class T>
class DotRow {
  using V = typename B::V;

 public:
  explicit DotRow(const Blocks<B>& blocks)
      : blocks_(blocks),
        natural_(kSameOrder ? 0 : blocks.len()),
        lanes_(blocks.workspace()),
        mask_(B::tail_mask(blocks.overlap())) {}
  HALFGNN_INLINE void set(const T* row) {
    if constexpr (kSameOrder) return set_blocks([&](int64_t offset) { return B::load(row + offset); });
    decode_row(row, blocks_.len(), natural_.get());
    set_floats(natural_.get());
  }
  // The same of a row that is decoded already.
  HALFGNN_INLINE void set_floats(const float* row) {
    set_blocks([&](int64_t offset) { return B::load_floats(row + offset); });
  }
  HALFGNN_INLINE void scale(float factor) {
    for (int64_t i = 0; i < blocks_.workspace(); ++i) lanes_[i] *= factor;
  }
  HALFGNN_INLINE const float* lanes() const { return lanes_; }
  HALFGNN_INLINE const V& mask() const { return mask_; }

 private:
  // Blocks of another type have another order of lanes.
  static constexpr bool kSameOrder = std::is_same<T, typename B::Element>::value;
  // load(where the block begins in the row)
  template <class Load>
  HALFGNN_INLINE void set_blocks(Load load) {
    const int64_t last = blocks_.per_head - 1;
    for (int64_t h = 0; h < blocks_.heads; ++h) {
      for (int64_t b = 0; b < last; ++b) B::store_acc(load(blocks_.offset(h, b)), lanes_ + blocks_.slot(h, b));
      B::store_acc(keep(load(blocks_.offset(h, last)), mask_), lanes_ + blocks_.slot(h, last));
    }
  }
  Blocks<B> blocks_;
  Buffer<float> natural_, lanes_;
  V mask_;
};

// Rows that are dotted together, and those whose turn comes kPrefetchEdges edges later: they are prefetched block by
// block, as the others are read.
template <class T, int K>
struct DotBatch {
  const T* rows[K];
  const T* ahead[K];
  // edges: where the rows of consecutive edges begin
  HALFGNN_INLINE explicit DotBatch(const T* const* edges) {
    for (int k = 0; k < K; ++k) rows[k] = edges[k];
    for (int k = 0; k < K; ++k) ahead[k] = edges[k + kPrefetchEdges];
  }
  HALFGNN_INLINE void prefetch(int64_t at) const {
    for (int k = 0; k < K; ++k) __builtin_prefetch(ahead[k] + at);
  }
};

// sum[k] = x row_k over a head of kBlocks blocks that do not overlap, or of any blocks if kBlocks is 0. sum[k]'s lanes
// are then to be added. edges: where K rows begin, and kPrefetchEdges more.
template <class B, int K, int kBlocks = 0>
HALFGNN_INLINE void dot_head(const Blocks<B>& blocks, const DotRow<B, typename B::Element>& x, int64_t head,
                             const typename B::Element* const* edges, typename B::V* sum) {
  using V = typename B::V;
  const bool repeats = kBlocks == 0 && blocks.overlap() > 0;
  const int64_t whole = kBlocks ? kBlocks : blocks.per_head - (repeats ? 1 : 0);
  const float* own = x.lanes() + (kBlocks ? head * kBlocks * B::kWidth : blocks.slot(head, 0));
  int64_t at = head * (kBlocks ? kBlocks * B::kWidth : blocks.dim);
  const DotBatch<typename B::Element, K> batch(edges);
  for (int k = 0; k < K; ++k) sum[k] = V{};
  const auto add_block = [&] {
    const V mine = B::load_acc(own);
    for (int k = 0; k < K; ++k) sum[k] = multiply_add(mine, B::load(batch.rows[k] + at), sum[k]);
    own += B::kWidth;
    at += B::kWidth;
  };
  constexpr int kLine = 64 / (B::kWidth * static_cast<int>(sizeof(typename B::Element)));  // blocks of a line
  int64_t b = 0;
  if constexpr (kLine == 2) {
    for (; b + 2 <= whole; b += 2) {
      batch.prefetch(at);
      add_block();
      add_block();
    }
  }
  for (; b < whole; ++b) {
    batch.prefetch(at);
    add_block();
  }
  if (!repeats) return;
  const V mine = B::load_acc(own);
  at = (head + 1) * blocks.dim - B::kWidth;
  for (int k = 0; k < K; ++k) {
    __builtin_prefetch(batch.ahead[k] + at);
    sum[k] = multiply_add(mine, keep(B::load(batch.rows[k] + at), x.mask()), sum[k]);
  }
}

}  // namespace halfgnn::HALFGNN_ISA
