// Dot products of one row with many others, by blocks.
#pragma once

#include <type_traits>

#include "blocks.h"
#include "buffer.h"
#include "rows.h"

namespace halfgnn::HALFGNN_ISA {

// A node's row as fp32 blocks in lane order, ready to be dotted. The lanes that a last block shares with its neighbour
// are zero. The other side's must be cleared too (mask()): zero times an infinity there would be NaN.
template <class B>
class DotLanes {
 public:
  HALFGNN_INLINE const float* lanes() const { return lanes_; }
  HALFGNN_INLINE const typename B::V& mask() const { return mask_; }

 protected:
  explicit DotLanes(const Blocks<B>& blocks) : lanes_(blocks.workspace()), mask_(B::tail_mask(blocks.overlap())) {}
  Buffer<float> lanes_;
  typename B::V mask_;
};

// The same of a row of elements of T, which may differ from those of B.
template <class B, class T>
class DotRow : public DotLanes<B> {
  using V = typename B::V;
  using DotLanes<B>::lanes_;
  using DotLanes<B>::mask_;

 public:
  explicit DotRow(const Blocks<B>& blocks)
      : DotLanes<B>(blocks), blocks_(blocks), natural_(kSameOrder ? 0 : blocks.len()) {}
  HALFGNN_INLINE void set(const T* row) {
    if constexpr (!kSameOrder) decode_row(row, blocks_.len(), natural_.get());
    const int64_t last = blocks_.per_head - 1;
    for (int64_t h = 0; h < blocks_.heads; ++h) {
      for (int64_t b = 0; b < last; ++b) B::store_acc(block(row, h, b), lanes_ + blocks_.slot(h, b));
      B::store_acc(keep(block(row, h, last), mask_), lanes_ + blocks_.slot(h, last));
    }
  }
  HALFGNN_INLINE void scale(float factor) {
    for (int64_t i = 0; i < blocks_.workspace(); ++i) lanes_[i] *= factor;
  }

 private:
  // Blocks of another type have another order of lanes.
  static constexpr bool kSameOrder = std::is_same<T, typename B::Element>::value;
  HALFGNN_INLINE V block(const T* row, int64_t head, int64_t block) const {
    const int64_t offset = blocks_.offset(head, block);
    if constexpr (kSameOrder) return B::load(row + offset);
    return B::load_floats(natural_ + offset);
  }
  Blocks<B> blocks_;
  Buffer<float> natural_;
};

// Rows that are dotted together, and those whose turn comes kPrefetchEdges edges later: they are prefetched block by
// block, as the others are read.
template <class T>
struct DotBatch {
  const T* rows[kBatch];
  const T* ahead[kBatch];
  template <int K>
  HALFGNN_INLINE void prefetch(int64_t at) const {
    for (int k = 0; k < K; ++k) __builtin_prefetch(ahead[k] + at);
  }
};

// sum[k] = x row_k over a head of kBlocks blocks that do not overlap, or of any blocks if kBlocks is 0. sum[k]'s lanes
// are then to be added.
template <class B, int K, int kBlocks = 0>
HALFGNN_INLINE void dot_head(const Blocks<B>& blocks, const DotLanes<B>& x, int64_t head,
                             const DotBatch<typename B::Element>& batch, typename B::V* sum) {
  using V = typename B::V;
  const bool repeats = kBlocks == 0 && blocks.overlap() > 0;
  const int64_t whole = kBlocks ? kBlocks : blocks.per_head - (repeats ? 1 : 0);
  const float* own = x.lanes() + (kBlocks ? head * kBlocks * B::kWidth : blocks.slot(head, 0));
  int64_t at = head * (kBlocks ? kBlocks * B::kWidth : blocks.dim);
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
      batch.template prefetch<K>(at);
      add_block();
      add_block();
    }
  }
  for (; b < whole; ++b) {
    batch.template prefetch<K>(at);
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
