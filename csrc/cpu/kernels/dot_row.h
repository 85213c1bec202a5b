// Dot products of one row with many others, by blocks.
#pragma once

#include "blocks.h"
#include "buffer.h"

namespace halfgnn::HALFGNN_ISA {

// A node's row as fp32 blocks in lane order, ready to be dotted. The lanes that a last block shares with its neighbour
// are zero. The other side's must be cleared too (Block::tail_mask): zero times an infinity there would be NaN.
template <class B, class T>
class DotRow {
 public:
  explicit DotRow(const Blocks<B>& blocks) : blocks_(blocks), natural_(blocks.len()), lanes_(blocks.workspace()) {}
  HALFGNN_INLINE void set(const T* row) {
    decode_row(row, blocks_.len(), natural_.get());
    for (int64_t h = 0; h < blocks_.heads; ++h)
      for (int64_t b = 0; b < blocks_.per_head; ++b) {
        float block[B::kWidth];
        memcpy(block, natural_ + blocks_.offset(h, b), sizeof(block));
        if (b == blocks_.per_head - 1)
          for (int64_t i = 0; i < blocks_.overlap(); ++i) block[i] = 0.f;
        B::store_acc(B::load_floats(block), lanes_ + blocks_.slot(h, b));
      }
  }
  HALFGNN_INLINE const float* lanes() const { return lanes_; }

 private:
  Blocks<B> blocks_;
  Buffer<float> natural_, lanes_;
};

}  // namespace halfgnn::HALFGNN_ISA
