// What the fused attentions share: tiles of edges, softmax over the edges of a row in tiles, dropout, and arithmetic on
// blocks of any width. Included once for each instruction set (see attention_*.cpp).
//
// Edges are worked on in tiles of whole rows, small enough for the first-level cache; a row that is longer is cut into
// tiles of its own. In a tile, what belongs to an (edge, head) pair lies in flat arrays, so that logits, exponentials
// and dropout take full vectors whatever the degrees; then the rows of features are added up, four edges at once. What
// a row's result is made of, and in which order, does not depend on the rows beside it.
#pragma once

#include "../../core/philox.h"
#include "attention_table.h"
#include "edge_softmax_kernel.h"

namespace halfgnn {
namespace HALFGNN_ISA {

// ---- blocks: W elements of half or fp32 data, or single elements of any data, with one set of operations

template <class T, int W>
struct WideBlock : Block<T, W> {
  using Element = T;
  using Acc = float;
  using V = typename Block<T, W>::V;
  using Weight = f32x8;             // a factor of all lanes
  static constexpr int kEdges = 4;  // that are processed together; see kBatch
  static HALFGNN_INLINE Weight weight(float x) { return splat(x); }
  static HALFGNN_INLINE V load_acc(const float* p) { return load_lanes<W / 8>(p); }
  static HALFGNN_INLINE void store_acc(V x, float* p) { store_lanes(x, p); }
  static HALFGNN_INLINE float sum(V x) { return sum_lanes(fold(x)); }
  // The lanes of a last block that repeat its neighbour's are cleared by it.
  static HALFGNN_INLINE V tail_mask(int64_t overlap) {
    float block[W];
    for (int64_t i = 0; i < W; ++i) block[i] = bit_cast<float>(i < overlap ? 0u : 0xffffffffu);
    return Block<T, W>::load_floats(block);
  }
};
template <class A>
struct Single {
  A v;
};
template <class T, class A>
struct SingleBlock {
  static constexpr int kWidth = 1;
  using Element = T;
  using Acc = A;
  using V = Single<A>;
  using Weight = A;
  static constexpr int kEdges = 1;
  static HALFGNN_INLINE Weight weight(A x) { return x; }
  static HALFGNN_INLINE V load(const T* p) { return {static_cast<A>(to_float(*p))}; }
  template <class S>
  static HALFGNN_INLINE void store(V x, S* p) {
    encode_row(&x.v, 1, p);
  }
  static HALFGNN_INLINE V load_acc(const A* p) { return {*p}; }
  static HALFGNN_INLINE void store_acc(V x, A* p) { *p = x.v; }
  static HALFGNN_INLINE A sum(V x) { return x.v; }
  static HALFGNN_INLINE V tail_mask(int64_t) { return {}; }
};

template <int N>
HALFGNN_INLINE Lanes<N> multiply(Lanes<N> x, Lanes<N> y) {
  for (int i = 0; i < N; ++i) x.v[i] *= y.v[i];
  return x;
}
template <int N>
HALFGNN_INLINE Lanes<N> subtract(Lanes<N> x, Lanes<N> y) {
  for (int i = 0; i < N; ++i) x.v[i] -= y.v[i];
  return x;
}
template <int N>
HALFGNN_INLINE Lanes<N> keep(Lanes<N> x, Lanes<N> mask) {
  for (int i = 0; i < N; ++i) x.v[i] = bit_cast<f32x8>(bit_cast<u32x8>(x.v[i]) & bit_cast<u32x8>(mask.v[i]));
  return x;
}
template <int N>
HALFGNN_INLINE Lanes<N> leaky(Lanes<N> z, f32x8 slope) {
  for (int i = 0; i < N; ++i) z.v[i] = z.v[i] > splat(0.f) ? z.v[i] : z.v[i] * slope;
  return z;
}
// sum += z > 0 ? above : below
template <int N>
HALFGNN_INLINE Lanes<N> add_by_sign(Lanes<N> z, f32x8 above, f32x8 below, Lanes<N> sum) {
  for (int i = 0; i < N; ++i) sum.v[i] += z.v[i] > splat(0.f) ? above : below;
  return sum;
}
// x, 0 where it is not finite
template <int N>
HALFGNN_INLINE Lanes<N> finite_or_zero(Lanes<N> x) {
  for (int i = 0; i < N; ++i) x.v[i] = x.v[i] - x.v[i] == splat(0.f) ? x.v[i] : splat(0.f);
  return x;
}

template <class A>
HALFGNN_INLINE Single<A> multiply_add(A x, Single<A> y, Single<A> sum) {
  return {sum.v + x * y.v};
}
template <class A>
HALFGNN_INLINE Single<A> multiply_add(Single<A> x, Single<A> y, Single<A> sum) {
  return {sum.v + x.v * y.v};
}
template <class A>
HALFGNN_INLINE Single<A> add(Single<A> x, Single<A> y) {
  return {x.v + y.v};
}
template <class A>
HALFGNN_INLINE Single<A> scale(A a, Single<A> x) {
  return {a * x.v};
}
template <class A>
HALFGNN_INLINE Single<A> multiply(Single<A> x, Single<A> y) {
  return {x.v * y.v};
}
template <class A>
HALFGNN_INLINE Single<A> subtract(Single<A> x, Single<A> y) {
  return {x.v - y.v};
}
template <class A>
HALFGNN_INLINE Single<A> keep(Single<A> x, Single<A>) {
  return x;
}
template <class A>
HALFGNN_INLINE Single<A> leaky(Single<A> z, A slope) {
  return {z.v > 0 ? z.v : z.v * slope};
}
template <class A>
HALFGNN_INLINE Single<A> add_by_sign(Single<A> z, A above, A below, Single<A> sum) {
  return {sum.v + (z.v > 0 ? above : below)};
}
template <class A>
HALFGNN_INLINE Single<A> finite_or_zero(Single<A> x) {
  return {x.v - x.v == 0 ? x.v : A(0)};
}

#if defined(HALFGNN_F16C)
// Four at once: halves are added in pairs, then turned so that one addition serves all.
HALFGNN_INLINE __m256 add_halves(f32x8 x, f32x8 y) {
  const __m256 a = bit_cast<__m256>(x), b = bit_cast<__m256>(y);
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
template <int N>
HALFGNN_INLINE void store_four_sums(const Lanes<N>* sums, float* out, int64_t stride) {
  const __m256 x = add_halves(fold(sums[0]), fold(sums[1])), y = add_halves(fold(sums[2]), fold(sums[3]));
  const __m256 pairs = _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
  const f32x8 all = bit_cast<f32x8>(_mm256_add_ps(pairs, _mm256_movehdup_ps(pairs)));
  out[0] = all[0];
  out[stride] = all[4];
  out[2 * stride] = all[2];
  out[3 * stride] = all[6];
}
#else
template <int N>
HALFGNN_INLINE void store_four_sums(const Lanes<N>* sums, float* out, int64_t stride) {
  for (int k = 0; k < 4; ++k) out[k * stride] = sum_lanes(fold(sums[k]));
}
#endif
// out[k * stride] = the sum of the lanes of sums[k], added in the order of sum_lanes whatever K: an edge's logit is the
// same in every pass.
template <class B, int K>
HALFGNN_INLINE void store_lane_sums(const typename B::V* sums, typename B::Acc* out, int64_t stride) {
  if constexpr (K == 4 && B::kWidth > 1) {
    store_four_sums(sums, out, stride);
  } else {
    for (int k = 0; k < K; ++k) out[k * stride] = B::sum(sums[k]);
  }
}

// Blocks for sums along a head as well: whether a block repeats elements of its neighbour, and which.
template <class B>
struct HeadBlocks : Blocks<B> {
  using V = typename B::V;
  V mask;
  int64_t whole;  // blocks of a head that are not cut
  HeadBlocks(int64_t heads, int64_t dim)
      : Blocks<B>(heads, dim),
        mask(B::tail_mask(this->overlap())),
        whole(this->overlap() ? this->per_head - 1 : this->per_head) {}
  HALFGNN_INLINE int64_t len() const { return this->heads * this->dim; }
  // sum += x y; of a block that is cut, what its neighbour lacks.
  HALFGNN_INLINE V dot(int64_t block, V x, V y, V sum) const {
    return block < whole ? multiply_add(x, y, sum) : add(keep(multiply(x, y), mask), sum);
  }
};

// A row of elements in the order of lanes, as Acc.
template <class B>
HALFGNN_NOINLINE void load_own(const Blocks<B>& blocks, const typename B::Element* row, typename B::Acc* own) {
  for (int64_t h = 0; h < blocks.heads; ++h)
    for (int64_t b = 0; b < blocks.per_head; ++b)
      B::store_acc(B::load(row + blocks.offset(h, b)), own + blocks.slot(h, b));
}

// ---- tiles of edges

// Elements [begin, end) of indptr, indices or edge_ids, whatever their type.
HALFGNN_INLINE int64_t index_at(const void* data, bool is_int64, int64_t i) {
  return is_int64 ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
}
HALFGNN_INLINE void copy_indices(const void* data, bool is_int64, int64_t begin, int64_t n, int64_t* out) {
  if (is_int64) {
    memcpy(out, static_cast<const int64_t*>(data) + begin, static_cast<size_t>(n) * sizeof(int64_t));
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<const int32_t*>(data)[begin + i];
  }
}

// What a tile holds at most, in (edge, head) pairs: a flat array of it is 2 KB.
constexpr int64_t kTilePairs = 512;

// The rows [row_begin, row_end) tile by tile: whole rows, or a piece of one row. Edges are numbered within the tile.
class EdgeTile {
 public:
  EdgeTile(const Topology& topology, int64_t heads, int64_t max_edges, int64_t row_begin, int64_t row_end)
      : topology_(topology),
        max_edges_(max_edges),
        row_end_(row_end),
        row_(row_begin),
        position_(row_begin < row_end ? indptr(row_begin) : 0),
        starts_(max_edges + 2),
        cols_(max_edges + kPrefetchEdges),
        edges_(max_edges + kPrefetchEdges),
        heads(heads) {}

  // Moves on; false at the end.
  HALFGNN_NOINLINE bool next() {
    if (row_ == row_end_) return false;
    first_row = row_;
    begin = position_;
    const int64_t row_start = indptr(row_), stop = indptr(row_ + 1);
    starts = position_ == row_start;
    starts_[0] = 0;
    if (stop - position_ > max_edges_ || !starts) {  // a row in pieces
      end = stop - position_ > max_edges_ ? position_ + max_edges_ : stop;
      starts_[1] = end - begin;
      last_row = row_ + 1;
      finishes = end == stop;
    } else {
      end = stop;
      last_row = row_ + 1;
      starts_[1] = end - begin;
      while (last_row < row_end_ && last_row - first_row <= max_edges_) {
        const int64_t next_end = indptr(last_row + 1);
        if (next_end - begin > max_edges_) break;
        end = next_end;
        ++last_row;
        starts_[last_row - first_row] = end - begin;
      }
      finishes = true;
    }
    position_ = end;
    row_ = finishes ? last_row : row_;
    const int64_t left = topology_.num_edges - begin, wanted = end - begin + kPrefetchEdges;
    known_ = left < wanted ? left : wanted;
    copy_indices(topology_.indices, topology_.is_int64, begin, known_, cols_);
    if (topology_.edge_ids) {
      copy_indices(topology_.edge_ids, topology_.is_int64, begin, known_, edges_);
    } else {
      for (int64_t i = 0; i < known_; ++i) edges_[i] = begin + i;
    }
    return true;
  }

  HALFGNN_INLINE int64_t num_edges() const { return end - begin; }
  HALFGNN_INLINE int64_t pairs() const { return (end - begin) * heads; }
  // Pairs, rounded up to whole vectors: what flat arrays may be computed to.
  HALFGNN_INLINE int64_t padded() const { return (pairs() + 7) / 8 * 8; }
  int64_t capacity() const { return max_edges_ * heads + 8; }
  int64_t max_rows() const { return max_edges_ + 1; }
  HALFGNN_INLINE int64_t row_first(int64_t row) const { return starts_[row - first_row]; }
  HALFGNN_INLINE int64_t row_last(int64_t row) const { return starts_[row - first_row + 1]; }
  HALFGNN_INLINE int64_t column(int64_t edge) const { return cols_[edge]; }
  HALFGNN_INLINE int64_t edge_id(int64_t edge) const { return edges_[edge]; }
  // Whether column() and edge_id() are known of an edge ahead of the tile.
  HALFGNN_INLINE bool has(int64_t edge) const { return edge < known_; }

 private:
  HALFGNN_INLINE int64_t indptr(int64_t row) const { return index_at(topology_.indptr, topology_.is_int64, row); }
  Topology topology_;
  int64_t max_edges_, row_end_, row_, position_, known_ = 0;
  Scratch<int64_t> starts_, cols_, edges_;

 public:
  int64_t heads;
  int64_t first_row = 0, last_row = 0;    // rows of this tile
  int64_t begin = 0, end = 0;             // positions of its edges
  bool starts = false, finishes = false;  // whether its rows begin and end in it
};

// Edges of a tile whose gathered rows, of `row_bytes` an edge, should stay in the first-level cache until they are read
// again.
HALFGNN_INLINE int64_t tile_edges(int64_t heads, int64_t row_bytes) {
  constexpr int64_t kTileBytes = 1 << 14, kFewest = 16;
  const int64_t by_pairs = kTilePairs / heads;
  const int64_t by_bytes = row_bytes > 0 ? kTileBytes / row_bytes : by_pairs;
  const int64_t least = by_pairs < by_bytes ? by_pairs : by_bytes;
  return least < kFewest ? kFewest : least;
}

// f(first, Count<K>) for the edges [first, last) in batches of kMost, and of fewer at the end.
template <int K>
struct Count {
  static constexpr int value = K;
};
template <int kMost, class F>
HALFGNN_INLINE void in_batches(int64_t first, int64_t last, F f) {
  for (; first + kMost <= last; first += kMost) f(first, Count<kMost>{});
  if constexpr (kMost > 2) {
    if (first + 2 <= last) {
      f(first, Count<2>{});
      first += 2;
    }
  }
  if constexpr (kMost > 1) {
    if (first < last) f(first, Count<1>{});
  }
}

// sum[head] += values of the edges [first, last), all or some of a row's; sum is begun anew where the row begins.
template <class Acc>
HALFGNN_NOINLINE void add_row_pairs(const EdgeTile& tile, int64_t first, int64_t last, const Acc* values, double* sum) {
  with_columns(tile.heads, [&](auto columns) {
    const int64_t n = columns.count();
    if (tile.starts)
      for (int64_t h = 0; h < n; ++h) sum[h] = 0;
    for (int64_t e = first; e < last; ++e)
      for (int64_t h = 0; h < n; ++h) sum[h] += values[e * n + h];
  });
}

// ---- softmax over the edges of a row, a tile at a time: running maximum and sum

template <class Acc>
class RowSoftmax {
 public:
  explicit RowSoftmax(const EdgeTile& tile)
      : tile_(tile), heads_(tile.heads), best_(tile.max_rows() * tile.heads), sum_(heads_), factor_(heads_) {}

  // logits -= the maximum so far of their row and head. What was summed in earlier tiles of the row must then be
  // multiplied by factors, one a head: returned, or null where all are 1.
  HALFGNN_NOINLINE const Acc* subtract_maximum(Acc* logits) {
    bool rises = false;
    with_columns(heads_, [&](auto columns) {
      const int64_t n = columns.count();
      for (int64_t row = tile_.first_row; row < tile_.last_row; ++row) {
        const int64_t first = tile_.row_first(row), last = tile_.row_last(row);
        Acc* best = best_ + (row - tile_.first_row) * n;
        if (tile_.starts) {
          for (int64_t h = 0; h < n; ++h) best[h] = -static_cast<Acc>(INFINITY);
        } else {
          for (int64_t h = 0; h < n; ++h) factor_[h] = best[h];
        }
        for (int64_t e = first; e < last; ++e)
          for (int64_t h = 0; h < n; ++h) best[h] = logits[e * n + h] > best[h] ? logits[e * n + h] : best[h];
        if (!tile_.starts) {
          for (int64_t h = 0; h < n; ++h) {
            const bool higher = best[h] > factor_[h];
            rises |= higher;
            factor_[h] = higher ? static_cast<Acc>(exp(static_cast<double>(factor_[h] - best[h]))) : Acc(1);
            sum_[h] *= factor_[h];
          }
        }
        for (int64_t e = first; e < last; ++e)
          for (int64_t h = 0; h < n; ++h) logits[e * n + h] -= shift(best[h]);
      }
    });
    return rises ? factor_.get() : nullptr;
  }
  // Adds the row's weights of this tile to its sums.
  HALFGNN_INLINE void add(int64_t row, const Acc* weights) {
    add_row_pairs(tile_, tile_.row_first(row), tile_.row_last(row), weights, sum_.get());
  }
  // 1 / sum of all weights; nan where they are all 0, which is a row of logits of -inf
  HALFGNN_INLINE double inverse(int64_t head) const { return 1 / sum_[head]; }
  HALFGNN_INLINE double lse(int64_t row, int64_t head) const {
    return shift(best_[(row - tile_.first_row) * heads_ + head]) + log(sum_[head]);
  }

 private:
  // Of logits that are all -inf nothing is subtracted: their weights are then 0, as they are if a later tile has
  // others.
  static HALFGNN_INLINE Acc shift(Acc best) { return best == -static_cast<Acc>(INFINITY) ? Acc(0) : best; }
  const EdgeTile& tile_;
  int64_t heads_;
  Scratch<Acc> best_;
  Scratch<double> sum_;
  Scratch<Acc> factor_;
};

// Results a row and head of a row that ends in this tile: lse, and the factor of the sums.
template <class Acc>
HALFGNN_NOINLINE void finish_softmax(const RowSoftmax<Acc>& softmax, int64_t heads, int64_t row, bool empty,
                                     Acc* factor, void* lse) {
  for (int64_t h = 0; h < heads; ++h) {
    factor[h] = empty ? Acc(0) : static_cast<Acc>(softmax.inverse(h));
    if (lse) static_cast<Acc*>(lse)[row * heads + h] = empty ? Acc(0) : static_cast<Acc>(softmax.lse(row, h));
  }
}

// ---- flat arrays

template <class Acc>
HALFGNN_NOINLINE void clear_padding(const EdgeTile& tile, Acc* values) {
  for (int64_t i = tile.pairs(); i < tile.padded(); ++i) values[i] = 0;
}
template <class Acc>
HALFGNN_NOINLINE void exp_pairs(Acc* values, int64_t n) {
  exp_values(values, n);
}
template <class Acc>
HALFGNN_NOINLINE void multiply_pairs(int64_t n, const Acc* __restrict x, Acc* __restrict values) {
  for (int64_t i = 0; i < n; ++i) values[i] *= x[i];
}
template <class Acc>
HALFGNN_NOINLINE void scale_pairs(int64_t n, Acc scale, Acc* values) {
  for (int64_t i = 0; i < n; ++i) values[i] *= scale;
}
template <class Acc>
HALFGNN_NOINLINE void decode_pairs(const Operand& operand, int64_t row, Acc* out) {
  decode(operand, row, out);
}
template <class Acc>
HALFGNN_NOINLINE void encode_pairs(const Acc* values, int64_t n, DType type, void* out, int64_t row) {
  encode(values, n, type, out, row);
}

// ---- dropout

// The words of heads 4 quad ... 4 quad + 3 of eight edges: dropout_words(), side by side.
#if defined(HALFGNN_F16C)
struct WideProduct {
  u32x8 low, high;
};
HALFGNN_INLINE WideProduct wide_product(u32x8 x, uint32_t y) {
  const __m256i factor = _mm256_set1_epi32(static_cast<int32_t>(y)), a = bit_cast<__m256i>(x);
  const __m256i even = _mm256_mul_epu32(a, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  return {bit_cast<u32x8>(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa)),
          bit_cast<u32x8>(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa))};
}
HALFGNN_INLINE void dropout_words8(uint64_t seed0, uint64_t seed1, const int64_t* edges, uint32_t quad, u32x8* words) {
  uint32_t low[8], high[8];
  for (int i = 0; i < 8; ++i) {
    low[i] = static_cast<uint32_t>(edges[i]);
    high[i] = static_cast<uint32_t>(static_cast<uint64_t>(edges[i]) >> 32);
  }
  u32x8 x[4] = {load_unaligned<u32x8>(low), load_unaligned<u32x8>(high), splat_bits(quad),
                splat_bits(static_cast<uint32_t>(seed1))};
  uint32_t key0 = static_cast<uint32_t>(seed0), key1 = static_cast<uint32_t>(seed0 >> 32);
  for (int round = 0; round < 10; ++round) {
    const WideProduct product0 = wide_product(x[0], kPhilox0), product1 = wide_product(x[2], kPhilox1);
    x[0] = product1.high ^ x[1] ^ splat_bits(key0);
    x[1] = product1.low;
    x[2] = product0.high ^ x[3] ^ splat_bits(key1);
    x[3] = product0.low;
    key0 += kPhiloxKey0;
    key1 += kPhiloxKey1;
  }
  for (int j = 0; j < 4; ++j) words[j] = x[j];
}
#else
HALFGNN_INLINE void dropout_words8(uint64_t seed0, uint64_t seed1, const int64_t* edges, uint32_t quad, u32x8* words) {
  for (int i = 0; i < 8; ++i) {
    const RandomWords random = dropout_words(seed0, seed1, static_cast<uint64_t>(edges[i]), quad);
    for (int j = 0; j < 4; ++j) words[j][i] = random.word[j];
  }
}
#endif

// factors[edge, head] = 0 or scale. Eight edges at once, since the generator is ten rounds of multiplications.
template <class Acc>
HALFGNN_NOINLINE void dropout_factors(const Dropout& dropout, const EdgeTile& tile, Acc* factors) {
  const int64_t heads = tile.heads, n = tile.num_edges();
  const uint64_t seed0 = static_cast<uint64_t>(dropout.seed[0]), seed1 = static_cast<uint64_t>(dropout.seed[1]);
  const Acc scale = static_cast<Acc>(dropout.scale);
  for (int64_t first = 0; first < n; first += 8) {
    const int64_t count = n - first < 8 ? n - first : 8;
    int64_t edges[8];
    for (int64_t i = 0; i < 8; ++i) edges[i] = tile.edge_id(first + (i < count ? i : 0));
    for (int64_t quad = 0; quad * 4 < heads; ++quad) {
      u32x8 words[4];
      dropout_words8(seed0, seed1, edges, static_cast<uint32_t>(quad), words);
      const int64_t some = heads - 4 * quad < 4 ? heads - 4 * quad : 4;
      f32x8 kept[4];  // 1 or 0
      for (int j = 0; j < 4; ++j) kept[j] = words[j] < splat_bits(dropout.threshold) ? splat(0.f) : splat(1.f);
      Acc* out = factors + first * heads + 4 * quad;
      for (int64_t i = 0; i < count; ++i)
        for (int64_t j = 0; j < some; ++j) out[i * heads + j] = scale * kept[j][i];
    }
  }
  clear_padding(tile, factors);
}

// ---- rows of features

// sums[n] += weights[n][k] row_k, N sums of the same K rows; weights one a head.
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

// The rows of `feat` that K edges of a tile gather. What comes kPrefetchEdges later is prefetched.
template <int K, class T>
HALFGNN_INLINE void gather_rows(const EdgeTile& tile, const T* feat, int64_t len, bool prefetch, int64_t edge,
                                const T** rows) {
  for (int k = 0; k < K; ++k) {
    rows[k] = feat + tile.column(edge + k) * len;
    const int64_t ahead = edge + k + kPrefetchEdges;
    if (prefetch && tile.has(ahead)) prefetch_row(feat + tile.column(ahead) * len, len);
  }
}

// The same for the edges [first, last) of a tile, the rows being those of `feat` at the edges' columns.
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

// f(row, edges first ... last of the tile) for its rows.
template <class F>
HALFGNN_INLINE void each_row(const EdgeTile& tile, F f) {
  for (int64_t row = tile.first_row; row < tile.last_row; ++row) f(row, tile.row_first(row), tile.row_last(row));
}

// x = factor * sums: x rounded, and what that lost.
template <class B>
HALFGNN_NOINLINE void store_precise(const Blocks<B>& blocks, const typename B::Acc* sums, const typename B::Acc* factor,
                                    const Precise& out, int64_t row) {
  using T = typename B::Element;
  using V = typename B::V;
  T* value = static_cast<T*>(out.value) + row * blocks.heads * blocks.dim;
  T* residual = out.residual ? static_cast<T*>(out.residual) + row * blocks.heads * blocks.dim : nullptr;
  for (int64_t h = 0; h < blocks.heads; ++h)
    for (int64_t b = 0; b < blocks.per_head; ++b) {
      const int64_t offset = blocks.offset(h, b);
      const V x = scale(B::weight(factor[h]), B::load_acc(sums + blocks.slot(h, b)));
      B::store(x, value + offset);
      if (residual) B::store(finite_or_zero(subtract(x, B::load(value + offset))), residual + offset);
    }
}

template <class B>
HALFGNN_NOINLINE void store_sums(const Blocks<B>& blocks, const typename B::Acc* sums, typename B::Element* out) {
  for (int64_t h = 0; h < blocks.heads; ++h)
    for (int64_t b = 0; b < blocks.per_head; ++b)
      B::store(B::load_acc(sums + blocks.slot(h, b)), out + blocks.offset(h, b));
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

// dots[head] = <x, y>, y = value + residual
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

}  // namespace HALFGNN_ISA
}  // namespace halfgnn
