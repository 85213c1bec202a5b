// Sums of rows of codes of 8 bits (core/code_sum.h): of integers, where all rows have the same scales and no weights;
// otherwise of fp32 values.
#pragma once

#include "kernels.h"
#include "row_tiles.h"

namespace halfgnn::HALFGNN_ISA {

// ---- scales

// One scale and zero point per column, whatever they are given for. Those of rows are applied to weights instead.
class ColumnScales {
 public:
  ColumnScales(const Scales& scales, int64_t n) : scale_(n + kLanes), zero_(n + kLanes) {
    const bool by_row = scales.per == ScalePer::kRow, by_column = scales.per == ScalePer::kColumn;
    for (int64_t i = 0; i < n; ++i) {
      scale_[i] = by_row ? 1.f : scales.scale[by_column ? i : 0];
      zero_[i] = by_row || !scales.zero_point ? 0.f : scales.zero_point[by_column ? i : 0];
    }
    for (int64_t i = n; i < n + kLanes; ++i) scale_[i] = zero_[i] = 0.f;
  }
  const float* scale() const { return scale_; }
  const float* zero() const { return zero_; }

 private:
  Buffer<float> scale_, zero_;
};

// ---- sums of integers. A vector of bytes is read as halfwords of an even and an odd code. The sums of the halfwords
// and those of their upper bytes say what the lower ones add up to: modulo 2^16, which kWindowEdges codes do not reach.

constexpr int kCodes = 4 * kLanes;  // of a vector
typedef uint16_t CodePairs __attribute__((vector_size(kCodes)));
static_assert(kWindowEdges * 255 < 1 << 16, "sums of a window fit into halfwords");

// sum = the sums of the codes of N vectors, over `count` rows. flip: xor of the codes, which makes int8 unsigned.
template <int N>
HALFGNN_NOINLINE void sum_integers(const int64_t* offset, const uint8_t* const* rows, int64_t count, uint16_t flip,
                                   uint16_t* sum) {
  CodePairs all[N], odd[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) all[b] = odd[b] = CodePairs{};
  const CodePairs bits = flip + CodePairs{};
  const int64_t first = offset[0], last = offset[N - 1] + kCodes - 1;
  for (int64_t k = 0; k < count; ++k) {
    const uint8_t* const ahead = rows[k + kRowsAhead];
    for (int64_t i = 0; i < N * kCodes; i += 64) __builtin_prefetch(ahead + first + i);
    __builtin_prefetch(ahead + last);
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      const CodePairs x = load_unaligned<CodePairs>(rows[k] + offset[b]) ^ bits;
      all[b] += x;
      odd[b] += x >> 8;
    }
  }
  for (int b = 0; b < N; ++b) {
    const CodePairs even = all[b] - (odd[b] << 8);
    uint16_t lower[kCodes / 2], upper[kCodes / 2];
    memcpy(lower, &even, sizeof(even));
    memcpy(upper, &odd[b], sizeof(even));
    for (int i = 0; i < kCodes / 2; i += kLanes) {
      const Words words = __builtin_convertvector(load_unaligned<Halfwords>(lower + i), Words) |
                          (__builtin_convertvector(load_unaligned<Halfwords>(upper + i), Words) << 16);
      memcpy(sum + offset[b] + 2 * i, &words, sizeof(words));
    }
  }
}
template <int N = kTileBlocks>
HALFGNN_INLINE void sum_integers_of(int64_t vectors, const int64_t* offset, const uint8_t* const* rows, int64_t count,
                                    uint16_t flip, uint16_t* sum) {
  if constexpr (N > 1) {
    if (vectors < N) return sum_integers_of<N - 1>(vectors, offset, rows, count, flip, sum);
  }
  return sum_integers<N>(offset, rows, count, flip, sum);
}

// Rows of at least kCodes codes. The last vector of a row ends with it, and makes some sums again.
static void integer_rows(const CodeSumArgs& args, int64_t row_begin, int64_t row_end) {
  const int64_t n = args.dim;
  const Adjacency adj(args.topology);
  RowWindow<uint8_t> edges(adj, static_cast<const uint8_t*>(args.codes), n, false);
  const ColumnScales columns(args.scales, n);
  const float *scale = columns.scale(), *zero = columns.zero();
  const uint16_t flip = args.code == Code::kInt8 ? 0x8080 : 0;
  const float bias = args.code == Code::kInt8 ? 128.f : 0.f;
  const int64_t vectors = (n + kCodes - 1) / kCodes;
  Buffer<int64_t> offset(vectors);
  for (int64_t b = 0; b < vectors; ++b) offset[b] = (b + 1) * kCodes <= n ? b * kCodes : n - kCodes;
  Buffer<uint16_t> sum(n + kLanes);
  memset(sum, 0, static_cast<size_t>(n + kLanes) * sizeof(uint16_t));
  Buffer<double> total(n);
  Buffer<float> values(n + kLanes);

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    for (int64_t p = begin; p < end; p += kWindowEdges) {
      const int64_t count = end - p < kWindowEdges ? end - p : kWindowEdges;
      edges.hold(p, count);
      for (int64_t b = 0; b < vectors; b += kTileBlocks)
        sum_integers_of(vectors - b, offset + b, edges.rows(p), count, flip, sum);
      if (end - begin <= kWindowEdges) break;
      for (int64_t i = 0; i < n; ++i) total[i] = (p == begin ? 0. : total[i]) + sum[i];
    }
    const double degree = static_cast<double>(end - begin);
    const float factor = args.divide_by_degree && end > begin ? 1.f / static_cast<float>(end - begin) : 1.f;
    if (end == begin) {
      memset(values, 0, static_cast<size_t>(n) * sizeof(float));
    } else if (end - begin <= kWindowEdges) {  // integers are exact in fp32
      const Floats count = splat(static_cast<float>(degree)), biases = splat(static_cast<float>(degree) * bias);
      for (int64_t i = 0; i < n; i += kLanes) {
        const Words words = __builtin_convertvector(load_unaligned<Halfwords>(sum + i), Words);
        const Floats x = __builtin_convertvector(bit_cast<Integers>(words), Floats) - biases;
        store_vector((x - count * load_vector(zero + i)) * load_vector(scale + i) * splat(factor), values + i);
      }
    } else {
      for (int64_t i = 0; i < n; ++i)
        values[i] = static_cast<float>(((total[i] - degree * bias) - degree * zero[i]) * scale[i] * factor);
    }
    encode(values, n, args.out_type, args.out, row);
  }
}

// ---- sums of fp32 values

// Two vectors of float8_e4m3fn, converted to float16 at once, and not yet multiplied by 2^8 (see vec.h).
struct WideE4M3Block : Block<Float8E4M3, 2 * kLanes> {
  static HALFGNN_INLINE V load(const Float8E4M3* p) {
    using H = HalfwordsOf<2 * kLanes>;
    typedef typename VectorsOf<2 * kLanes>::SignedHalfwords Signed;
    const H bits = bit_cast<H>(bit_cast<Signed>(load_halfwords(p) << 8) >> 1) & 0xbfff;
    const auto halves = bit_cast<Halves<Halfwords>>(bits | ((bits + 0x80) & 0x4000));  // its only NaN gets that of fp16
    return {{from_float16(halves.lower), from_float16(halves.upper)}};
  }

 private:
  static HALFGNN_INLINE HalfwordsOf<2 * kLanes> load_halfwords(const Float8E4M3* p) {
#if defined(HALFGNN_AVX512)
    return bit_cast<HalfwordsOf<2 * kLanes>>(_mm512_cvtepu8_epi16(load_unaligned<__m256i>(p)));
#else
    return bit_cast<HalfwordsOf<2 * kLanes>>(Halves<Halfwords>{load_bytes<kLanes>(p), load_bytes<kLanes>(p + kLanes)});
#endif
  }
};
template <class B>
constexpr float kUnit = std::is_same_v<B, WideE4M3Block> ? 0x1p8f : 1.f;

// The weights of consecutive edges, one per head, multiplied by the scale of the edge's row of codes; and its zero
// point.
class CodeWeights {
 public:
  CodeWeights(const CodeSumArgs& args, const Adjacency& adj)
      : args_(args),
        adj_(adj),
        by_row_(args.scales.per == ScalePer::kRow),
        is_one_(!args.weight && !by_row_),
        weight_(kWindowEdges * args.heads),
        zero_(kWindowEdges) {
    for (int64_t i = 0; i < kWindowEdges * args.heads; ++i) weight_[i] = 1.f;
    for (int64_t k = 0; k < kWindowEdges; ++k) zero_[k] = 0.f;
  }
  // Of the edges [begin, begin + count), count <= kWindowEdges.
  HALFGNN_NOINLINE void hold(int64_t begin, int64_t count) {
    if (is_one_) return;
    if (by_row_) {
      const float *scale = args_.scales.scale, *zero = args_.scales.zero_point;
      for (int64_t k = 0; k < count; ++k) {
        const int64_t column = adj_.column(begin + k);
        for (int64_t h = 0; h < args_.heads; ++h) weight_[k * args_.heads + h] = scale[column];
        if (zero) zero_[k] = zero[column];
      }
    }
    if (!args_.weight) return;
    with_vector_type(args_.weight_type, [&](auto w) {
      const auto* weight = static_cast<const TypeOf<decltype(w)>*>(args_.weight);
      for (int64_t k = 0; k < count; ++k) {
        const int64_t edge = adj_.edge_id(begin + k);
        for (int64_t h = 0; h < args_.heads; ++h) {
          float& out = weight_[k * args_.heads + h];
          out = (by_row_ ? out : 1.f) * to_float(weight[edge * args_.heads + h]);
        }
      }
    });
  }
  const float* weights() const { return weight_; }
  const float* zeros() const { return zero_; }

 private:
  const CodeSumArgs& args_;
  const Adjacency& adj_;
  const bool by_row_, is_one_;
  Buffer<float> weight_, zero_;
};

// What has a zero point. It is taken off before a code is multiplied, so that zeros add up to zero.
enum class ZeroPer { kNone, kRow, kColumn };

template <class B, ZeroPer kZero, int N>
HALFGNN_NOINLINE void sum_values(const RowTile& tile, int64_t heads, const uint8_t* const* rows, int64_t count,
                                 const float* weight, const float* zero, float* sum) {
  using V = typename B::V;
  int64_t offset[N], head[N];
  V total[N], zeros[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    offset[b] = tile.offset[b];
    head[b] = tile.head[b];
    total[b] = V{};
    zeros[b] = kZero == ZeroPer::kColumn ? B::load_floats(zero + offset[b]) : V{};
  }
  for (int64_t k = 0; k < count; ++k, weight += heads) {
    prefetch_tile<B, N>(tile, rows[k + kRowsAhead]);
    const auto* row = reinterpret_cast<const typename B::Element*>(rows[k]);
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      V x = B::load(row + offset[b]);
      for (int i = 0; i < B::kWidth / B::L; ++i) {
        if (kZero == ZeroPer::kRow) x.v[i] -= splat<B::L>(zero[k]);
        if (kZero == ZeroPer::kColumn) x.v[i] -= zeros[b].v[i];
      }
      total[b] = multiply_add(B::weight(weight[head[b]]), x, total[b]);
    }
  }
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) B::store_acc(total[b], sum + b * B::kWidth);
}
// The blocks of a tile that is not whole are summed one by one, for fewer kernels to compile.
template <class B, ZeroPer kZero>
HALFGNN_INLINE void sum_values_of(int64_t blocks, const RowTile& tile, int64_t heads, const uint8_t* const* rows,
                                  int64_t count, const float* weight, const float* zero, float* sum) {
  if (blocks >= kTileBlocks) return sum_values<B, kZero, kTileBlocks>(tile, heads, rows, count, weight, zero, sum);
  for (int64_t b = 0; b < blocks; ++b) {
    RowTile single;
    single.offset[0] = tile.offset[b];
    single.head[0] = tile.head[b];
    sum_values<B, kZero, 1>(single, heads, rows, count, weight, zero, sum + b * B::kWidth);
  }
}

template <class B, ZeroPer kZero>
HALFGNN_NOINLINE void value_rows(const CodeSumArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency adj(args.topology);
  const Blocks<B> blocks(args.heads, args.dim);
  const int64_t n = blocks.len(), num_blocks = blocks.heads * blocks.per_head;
  Buffer<RowTile> tiles((num_blocks + kTileBlocks - 1) / kTileBlocks);
  for (int64_t i = 0; i < num_blocks; ++i) {
    RowTile& tile = tiles[i / kTileBlocks];
    const int64_t head = tile.head[i % kTileBlocks] = i / blocks.per_head;
    tile.offset[i % kTileBlocks] = blocks.offset(head, i % blocks.per_head);
  }
  RowWindow<uint8_t> edges(adj, static_cast<const uint8_t*>(args.codes), n, false);
  CodeWeights weights(args, adj);
  const ColumnScales columns(args.scales, n);
  RunningSum<float> sums(blocks.workspace());
  Buffer<float> values(n);
  const int64_t run_edges = args.out_type == DType::kFloat ? kRun : kHalfRun;
  const float* zero = kZero == ZeroPer::kColumn ? columns.zero() : weights.zeros();

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    float* run = begin < end ? sums.start_runs() : sums.start();
    for (int64_t p = begin; p < end; p += run_edges) {
      if (p > begin) sums.next_run();
      const int64_t count = end - p < run_edges ? end - p : run_edges;
      edges.hold(p, count);
      weights.hold(p, count);
      float* out = run;
      const RowTile* tile = tiles;
      for (int64_t left = num_blocks; left > 0; left -= kTileBlocks, ++tile, out += kTileBlocks * B::kWidth)
        sum_values_of<B, kZero>(left, *tile, args.heads, edges.rows(p), count, weights.weights(), zero, out);
    }
    const float* sum = sums.finish();
    const float mean = args.divide_by_degree && end > begin ? 1.f / static_cast<float>(end - begin) : 1.f;
    const float factor = kUnit<B> * mean;
    blocks.each([&](int64_t, int64_t slot, int64_t offset) {
      auto x = B::load_acc(sum + slot);
      const auto scale = B::load_floats(columns.scale() + offset);
      for (int i = 0; i < B::kWidth / B::L; ++i) x.v[i] *= scale.v[i] * splat<B::L>(factor);
      store_lanes(x, values + offset);
    });
    encode(values, n, args.out_type, args.out, row);
  }
}

// ---- heads of fewer than 16 codes: rows one by one, in fp64

template <class C>
HALFGNN_NOINLINE void narrow_rows(const CodeSumArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency adj(args.topology);
  const int64_t n = args.heads * args.dim;
  RowWindow<uint8_t> edges(adj, static_cast<const uint8_t*>(args.codes), n, false);
  CodeWeights weights(args, adj);
  const ColumnScales columns(args.scales, n);
  const float* scale = columns.scale();
  const float* zero = columns.zero();
  Buffer<double> total(n);
  Buffer<float> values(n);

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    for (int64_t i = 0; i < n; ++i) total[i] = 0;
    for (int64_t p = begin; p < end; p += kWindowEdges) {
      const int64_t count = end - p < kWindowEdges ? end - p : kWindowEdges;
      edges.hold(p, count);
      weights.hold(p, count);
      const float* weight = weights.weights();
      for (int64_t k = 0; k < count; ++k, weight += args.heads) {
        __builtin_prefetch(edges.rows(p)[k + kRowsAhead]);
        const float zero_of_row = weights.zeros()[k];
        for (int64_t first = 0; first < n; first += 8) {
          const int64_t len = n - first < 8 ? n - first : 8;
          C codes[kMostLanes] = {};
          float x[8];
          memcpy(codes, edges.rows(p)[k] + first, static_cast<size_t>(len));
          store_vector(load_vector<8>(codes), x);
          for (int64_t i = 0; i < len; ++i) {
            const int64_t at = first + i;
            total[at] += static_cast<double>(weight[at / args.dim]) * (x[i] - zero_of_row - zero[at]);
          }
        }
      }
    }
    const double factor = args.divide_by_degree && end > begin ? 1. / static_cast<double>(end - begin) : 1.;
    for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(factor * total[i] * scale[i]);
    encode(values, n, args.out_type, args.out, row);
  }
}

// ---- the kernel of the table

template <class B>
static void value_rows_of(const CodeSumArgs& args, int64_t begin, int64_t end) {
  if constexpr (std::is_integral_v<typename B::Element>) {
    if (args.scales.zero_point && args.scales.per == ScalePer::kRow)
      return value_rows<B, ZeroPer::kRow>(args, begin, end);
    if (args.scales.zero_point) return value_rows<B, ZeroPer::kColumn>(args, begin, end);
  }
  return value_rows<B, ZeroPer::kNone>(args, begin, end);
}

static void code_sum(const CodeSumArgs& args, int64_t begin, int64_t end) {
  const bool is_integral = args.code == Code::kUInt8 || args.code == Code::kInt8;
  if (is_integral && !args.weight && args.scales.per != ScalePer::kRow && args.dim >= kCodes)
    return integer_rows(args, begin, end);
  with_code_type(args.code, [&](auto c) {
    using C = TypeOf<decltype(c)>;
    if (args.dim < 16) return narrow_rows<C>(args, begin, end);
    if constexpr (std::is_same_v<C, Float8E4M3>) {
      if (args.dim >= 2 * kLanes) return value_rows_of<WideE4M3Block>(args, begin, end);
    }
    return value_rows_of<Block<C, 16>>(args, begin, end);
  });
}

extern const CodeSumKernels kCodeSum;
const CodeSumKernels kCodeSum = {code_sum};

}  // namespace halfgnn::HALFGNN_ISA
