// Rows of features cut into blocks that fit into registers.
//
// A row is `heads` heads of `dim` elements. Each head is cut into blocks of B::kWidth elements. The last block of a
// head is moved back so that it ends with the head: it overlaps its neighbour instead of reading past the end. Where
// blocks are stored, both write equal values. Where lanes are added up along a head, the `overlap` lanes count once
// only.
//
// A row of sums is workspace: kWidth values of B::Acc per block (a slot), in the order that lanes have in registers.
#pragma once

#include <type_traits>

#include "convert.h"
#include "lanes.h"

namespace halfgnn::HALFGNN_ISA {

// Edges that are processed together: their loads overlap, and the running sum is read and written once for all of them.
constexpr int kBatch = 4;

// ---- types of blocks

// W consecutive elements of T as fp32 lanes. Each type has an order of lanes of its own; load, store and load_floats
// agree on it. Splitting two vectors of bfloat16 into even and odd elements takes a shift and a mask, and no shuffle.
template <class T, int W, int kMostLanes = kLanes>
struct Packed {
  static constexpr int L = W < kMostLanes ? W : kMostLanes;  // of a vector
  using V = Lanes<W / L, L>;
  static HALFGNN_INLINE V load(const T* p) {
    V r;
    for (int i = 0; i < W / L; ++i) r.v[i] = load_vector<L>(p + L * i);
    return r;
  }
  // The same where little but loads and additions is done.
  static HALFGNN_INLINE V load_to_add(const T* p) { return load(p); }
  template <class S>
  static HALFGNN_INLINE void store(V x, S* p) {
    for (int i = 0; i < W / L; ++i) store_vector(x.v[i], p + L * i);
  }
  static HALFGNN_INLINE V load_floats(const float* p) { return load_lanes<W / L, L>(p); }
};

// Two vectors of bfloat16 values: the even and the odd ones.
template <int kVectorLanes>
struct SplitBFloat16 {
  static constexpr int L = kVectorLanes;
  using V = Lanes<2, L>;
  static HALFGNN_INLINE V split(WordsOf<L> bits) {
    return {{bit_cast<FloatsOf<L>>(bits << 16), bit_cast<FloatsOf<L>>(bits & splat_bits<L>(0xffff0000))}};
  }
#if defined(HALFGNN_AVX512)
  static HALFGNN_INLINE V load(const BFloat16* p) { return split(load_once<WordsOf<L>>(p)); }
#else
  static HALFGNN_INLINE V load(const BFloat16* p) { return split(load_unaligned<WordsOf<L>>(p)); }
#endif
  static HALFGNN_INLINE V load_to_add(const BFloat16* p) { return split(load_once<WordsOf<L>>(p)); }
  static HALFGNN_INLINE void store(V x, BFloat16* p) {
    const auto bits = (round_to_bfloat16(x.v[0]) >> 16) | (round_to_bfloat16(x.v[1]) & splat_bits<L>(0xffff0000));
    memcpy(p, &bits, sizeof(bits));
  }
  static HALFGNN_INLINE void store(V x, float* p) {
    for (int i = 0; i < L; ++i) {
      p[2 * i] = x.v[0][i];
      p[2 * i + 1] = x.v[1][i];
    }
  }
  static HALFGNN_INLINE V load_floats(const float* p) {
    V r;
    for (int i = 0; i < L; ++i) {
      r.v[0][i] = p[2 * i];
      r.v[1][i] = p[2 * i + 1];
    }
    return r;
  }
};
template <>
struct Packed<BFloat16, 2 * kLanes> : SplitBFloat16<kLanes> {};
#if defined(HALFGNN_AVX512)
template <>
struct Packed<BFloat16, kLanes, kLanes / 2> : SplitBFloat16<kLanes / 2> {};
#endif

// W elements of half or fp32 data.
template <class T, int W, int kMostLanes = kLanes>
struct Block : Packed<T, W, kMostLanes> {
  static constexpr int kWidth = W;
  static constexpr int kEdges = kBatch;
  using Element = T;
  using Acc = float;  // what is computed in
  using V = typename Packed<T, W, kMostLanes>::V;
  using Packed<T, W, kMostLanes>::L;
  using Weight = FloatsOf<L>;  // a factor of all lanes
  static HALFGNN_INLINE Weight weight(float x) { return splat<L>(x); }
  static HALFGNN_INLINE V load_acc(const float* p) { return load_lanes<W / L, L>(p); }
  static HALFGNN_INLINE void store_acc(V x, float* p) { store_lanes(x, p); }
  static HALFGNN_INLINE float sum(V x) { return sum_lanes(fold(x)); }
  // For keep(): clears the first `overlap` lanes, which the last block shares with its neighbour.
  static HALFGNN_INLINE V tail_mask(int64_t overlap) {
    float block[W];
    for (int64_t i = 0; i < W; ++i) block[i] = bit_cast<float>(i < overlap ? 0u : 0xffffffffu);
    return Packed<T, W, kMostLanes>::load_floats(block);
  }
};

// A block of B's width from elements of another type, in B's order of lanes: fp32 beside halves, or halves beside fp32.
template <class B, class E>
HALFGNN_INLINE typename B::V load_as(const E* p) {
  if constexpr (std::is_same<E, typename B::Element>::value) {
    return B::load(p);
  } else if constexpr (sizeof(E) == sizeof(float)) {
    return B::load_floats(p);
  } else {
    typename B::V r;
    for (int i = 0; i < B::kWidth / B::L; ++i) r.v[i] = load_vector<B::L>(p + B::L * i);
    return r;
  }
}

// One element of any type: for short rows, and for fp64.
template <class T, class A>
struct SingleBlock {
  static constexpr int kWidth = 1;
  static constexpr int kEdges = 1;
  using Element = T;
  using Acc = A;
  using V = Single<A>;
  using Weight = A;
  static HALFGNN_INLINE Weight weight(A x) { return x; }
  static HALFGNN_INLINE V load(const T* p) { return {static_cast<A>(to_float(*p))}; }
  template <class S>
  static HALFGNN_INLINE void store(V x, S* p) {
    encode_row(&x.v, 1, p);
  }
  static HALFGNN_INLINE V load_floats(const float* p) { return {static_cast<A>(*p)}; }
  static HALFGNN_INLINE V load_acc(const A* p) { return {*p}; }
  static HALFGNN_INLINE void store_acc(V x, A* p) { *p = x.v; }
  static HALFGNN_INLINE A sum(V x) { return x.v; }
  static HALFGNN_INLINE V tail_mask(int64_t) { return {}; }
};

// Lanes of the vectors of rows of 16 to 31 elements per head, where they are added up or multiplied. For AVX-512 eight:
// one vector of 16 bfloat16 values takes a shuffle to be widened, and more steps until its lanes are added up.
template <class T>
constexpr int kNarrowLanes = std::is_same<T, BFloat16>::value && kLanes > 8 ? 8 : kLanes;

// f(a block) for rows of `dim` >= 8 elements of T per head. kLanesOf16: of the vectors of a block of 16.
template <class T, int kLanesOf16 = kLanes, class F>
inline void with_block(int64_t dim, F f) {
  if constexpr (std::is_same<T, BFloat16>::value) {
    if (dim >= 2 * kLanes) return f(Block<T, 2 * kLanes>{});
  }
  if (dim >= 16) return f(Block<T, 16, kLanesOf16>{});
  return f(Block<T, 8>{});
}

// ---- rows of blocks

template <class B>
struct Blocks {
  int64_t heads, dim, per_head;
  Blocks(int64_t heads, int64_t dim) : heads(heads), dim(dim), per_head((dim + B::kWidth - 1) / B::kWidth) {}
  HALFGNN_INLINE int64_t len() const { return heads * dim; }
  int64_t workspace() const { return heads * per_head * B::kWidth; }
  HALFGNN_INLINE int64_t offset(int64_t head, int64_t block) const {
    const int64_t start = block * B::kWidth, last = dim - B::kWidth;
    return head * dim + (start < last ? start : last);
  }
  HALFGNN_INLINE int64_t slot(int64_t head, int64_t block) const { return (head * per_head + block) * B::kWidth; }
  int64_t overlap() const { return per_head * B::kWidth - dim; }
  // f(head, slot, offset) for every block of a row.
  template <class F>
  HALFGNN_INLINE void each(F f) const {
    const Blocks blocks = *this;  // which no store of f can change, so that it stays in registers
    for (int64_t h = 0; h < blocks.heads; ++h)
      for (int64_t b = 0; b < blocks.per_head; ++b) f(h, blocks.slot(h, b), blocks.offset(h, b));
  }
};

// Stores factor * sum, rounded to S.
template <class B, class S>
HALFGNN_INLINE void store_scaled(const Blocks<B>& blocks, const float* sum, float factor, S* out) {
  for (int64_t h = 0; h < blocks.heads; ++h)
    for (int64_t b = 0; b < blocks.per_head; ++b)
      B::store(scale(B::weight(factor), B::load_acc(sum + blocks.slot(h, b))), out + blocks.offset(h, b));
}

// Stores factor * sum as row `row` of a matrix of the result's type.
template <class B>
HALFGNN_INLINE void store_row(const Blocks<B>& blocks, const float* sum, float factor, DType type, void* out,
                              int64_t row) {
  with_partner_type<typename B::Element>(type, [&](auto s) {
    store_scaled(blocks, sum, factor, static_cast<TypeOf<decltype(s)>*>(out) + row * blocks.len());
  });
}

}  // namespace halfgnn::HALFGNN_ISA
