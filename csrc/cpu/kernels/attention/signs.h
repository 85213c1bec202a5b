// The signs of features of a tile's edges, a bit each: what GATv2's derivatives need of its pairs of rows. The bits of
// a head are in the order of workspace and begin with a word.
#pragma once

#include "head_blocks.h"
#include "passes.h"

namespace halfgnn::HALFGNN_ISA {

struct TileSigns {
  uint32_t* words;
  int64_t heads, words_per_head;
  HALFGNN_INLINE uint8_t* head(int64_t edge, int64_t h) const {
    return reinterpret_cast<uint8_t*>(words + (edge * heads + h) * words_per_head);
  }
};

// Bit l: whether lane l is positive.
template <int L>
HALFGNN_INLINE uint32_t positive_lanes(FloatsOf<L> z) {
#if defined(HALFGNN_AVX512)
  if constexpr (L == 16) return _mm512_cmp_ps_mask(bit_cast<__m512>(z), _mm512_setzero_ps(), _CMP_GT_OQ);
#endif
#if defined(HALFGNN_F16C)
  if constexpr (L == 8) {
    return static_cast<uint32_t>(_mm256_movemask_ps(bit_cast<__m256>(z > splat<L>(0.f))));
  }
#endif
  uint32_t bits = 0;
  for (int l = 0; l < L; ++l) bits |= static_cast<uint32_t>(z[l] > 0.f) << l;
  return bits;
}

// The signs of a block as the lowest bits of a word.
template <int N, int L>
HALFGNN_INLINE uint32_t signs_of(const Lanes<N, L>& z) {
  uint32_t bits = 0;
  for (int i = 0; i < N; ++i) bits |= positive_lanes<L>(z.v[i]) << (L * i);
  return bits;
}
template <class A>
HALFGNN_INLINE uint32_t signs_of(Single<A> z) {
  return z.v > 0;
}

// Stores the signs of K edges' heads, block by block.
template <class B, int K>
class SignWriter {
 public:
  HALFGNN_INLINE SignWriter(const TileSigns& signs, int64_t edge, int64_t head)
      : words_(signs.words + (edge * signs.heads + head) * signs.words_per_head),
        stride_(signs.heads * signs.words_per_head) {}
  HALFGNN_INLINE void add(int k, int64_t block, const typename B::V& z) {
    bits_[k] |= signs_of(z) << (block * B::kWidth % 32);
  }
  // After a block of all edges.
  HALFGNN_INLINE void finish(int64_t block, bool is_last) {
    if (!is_last && (block + 1) * B::kWidth % 32 != 0) return;
    for (int k = 0; k < K; ++k) {
      words_[k * stride_ + block * B::kWidth / 32] = bits_[k];
      bits_[k] = 0;
    }
  }

 private:
  uint32_t* words_;
  int64_t stride_;
  uint32_t bits_[K] = {};
};

// The signs of C blocks of a head, at most a word.
template <class B, int C>
struct BlockSigns {
  static constexpr int L = B::L;
  WordsOf<L> word;

  HALFGNN_INLINE BlockSigns(const uint8_t* head, int64_t block) {
    uint32_t bits = 0;
    memcpy(&bits, head + block * (B::kWidth / 8), C * B::kWidth / 8);
    word = splat_bits<L>(bits);
  }
  // The lanes of `above` where block c is positive, elsewhere those of `below`.
  HALFGNN_INLINE typename B::V choose(int c, FloatsOf<L> above, FloatsOf<L> below) const {
    static constexpr struct Table {
      uint32_t bits[32] = {};
      constexpr Table() {
        for (int i = 0; i < 32; ++i) bits[i] = 1u << i;
      }
    } kTable;
    typename B::V r;
    for (int i = 0; i < B::kWidth / L; ++i) {
      const auto bits = load_unaligned<WordsOf<L>>(kTable.bits + c * B::kWidth + i * L);
      r.v[i] = choose_lanes((word & bits) == bits, above, below);
    }
    return r;
  }
};
template <class T, class A, int C>
struct BlockSigns<SingleBlock<T, A>, C> {
  const uint8_t* head;
  int64_t block;
  HALFGNN_INLINE BlockSigns(const uint8_t* head, int64_t block) : head(head), block(block) {}
  HALFGNN_INLINE Single<A> choose(int c, A above, A below) const {
    return {head[(block + c) / 8] >> (block + c) % 8 & 1 ? above : below};
  }
};

}  // namespace halfgnn::HALFGNN_ISA
