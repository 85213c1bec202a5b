// Rows of codes of 8 bits, gathered by id and converted to fp16, bf16 or fp32. Every instruction set gives the same
// bits.
//
// A block of rows is copied to a buffer in the cache first. Copies wait for memory, and conversions stream to it: where
// rows were converted as they came, a gather took half as long again.
#pragma once

#include "kernels.h"
#include "rows.h"
#include "stream.h"

namespace halfgnn::HALFGNN_ISA {

static_assert(kLanes <= kMostLanes, "scales of columns are padded for the longest vectors");

constexpr int64_t kBlockBytes = 1 << 15, kBlockRows = 64;  // of the buffer; longer rows are converted in pieces
constexpr int64_t kLineBytes = 64;

// ---- scales of the rows of a block. Only integers have zero points (kHasZero).

class ScaleOfRow {
 public:
  explicit ScaleOfRow(const Scales& scales) : scales_(scales) {}
  // Of the rows id(0) ... id(count - 1). They lie apart, so all are loaded before one is used.
  template <class Id>
  HALFGNN_INLINE void hold(Id id, int64_t count) {
    const bool by_row = scales_.per == ScalePer::kRow;
    for (int64_t k = 0; k < count; ++k) scale_[k] = scales_.scale[by_row ? id(k) : 0];
    for (int64_t k = 0; k < count; ++k)
      zero_point_[k] = scales_.zero_point ? scales_.zero_point[by_row ? id(k) : 0] : 0;
  }
  // For the block's row k: the values of a vector of codes, from column i on.
  template <bool kHasZero>
  HALFGNN_INLINE auto of(int64_t k) const {
    const Floats zero_point = splat(zero_point_[k]), scale = splat(scale_[k]);
    return [=](Floats codes, int64_t) { return (kHasZero ? codes - zero_point : codes) * scale; };
  }

 private:
  const Scales scales_;
  float scale_[kBlockRows], zero_point_[kBlockRows];
};

class ScaleOfColumn {
 public:
  explicit ScaleOfColumn(const Scales& scales) : scales_(scales) {}
  template <class Id>
  HALFGNN_INLINE void hold(Id, int64_t) {}
  template <bool kHasZero>
  HALFGNN_INLINE auto of(int64_t) const {
    const float *zero_point = scales_.zero_point, *scale = scales_.scale;
    return [=](Floats codes, int64_t i) {
      return (kHasZero ? codes - load_vector(zero_point + i) : codes) * load_vector(scale + i);
    };
  }

 private:
  const Scales scales_;
};

// ---- rows

// values(i): the vector of a row's values from column i on. It may read past the row's n codes.
template <class T, class Values>
HALFGNN_INLINE void store_values(int64_t n, Values values, T* out, bool streams) {
  constexpr int64_t kLineValues = kLineBytes / static_cast<int64_t>(sizeof(T));
  int64_t i = 0;
  if (streams) {  // rows of whole lines
    constexpr int64_t kStep = kLineValues > kLanes ? kLineValues : kLanes;
    for (; i + kStep <= n; i += kStep) {
      T line[kStep];
      for (int64_t j = 0; j < kStep; j += kLanes) store_vector(values(i + j), line + j);
      stream_row(line, kStep, out + i);
    }
  }
  for (; i + kLanes <= n; i += kLanes) store_vector(values(i), out + i);
  if (i == n) return;
  T rest[kLanes];
  store_vector(values(i), rest);
  for (int64_t j = i; j < n; ++j) out[j] = rest[j - i];
}

template <class C, class T, class S>
HALFGNN_NOINLINE void dequantize_rows(const GatherRowsArgs& args, int64_t begin, int64_t end) {
  constexpr int64_t kAhead = 8, kAheadBytes = 256;  // rows that are prefetched, and how much: more comes by itself
  alignas(kLineBytes) C buffer[kBlockBytes + kLanes];
  const Ids ids(args.ids, args.is_int64);
  const int64_t n = args.row_bytes;
  const int64_t block_rows = n > kBlockBytes ? 1 : n * kBlockRows > kBlockBytes ? kBlockBytes / n : kBlockRows;
  const RowStream stream(args.out, args.num_ids, n * static_cast<int64_t>(sizeof(T)));
  S scales(args.scales);
  const auto id = [&](int64_t i) { return ids[i * args.ids_stride]; };
  for (int64_t column = 0; column < n; column += kBlockBytes) {
    const int64_t len = n - column < kBlockBytes ? n - column : kBlockBytes;
    const int64_t known = len < kAheadBytes ? len : kAheadBytes;
    const C* const table = static_cast<const C*>(args.table) + column;
    T* const out = static_cast<T*>(args.out) + column;
    for (int64_t first = begin; first < end; first += block_rows) {
      const int64_t count = end - first < block_rows ? end - first : block_rows;
      for (int64_t k = 0; k < count; ++k) {
        if (first + k + kAhead < end) {
          const C* const ahead = table + id(first + k + kAhead) * args.table_stride;
          for (int64_t byte = 0; byte < known; byte += kLineBytes) __builtin_prefetch(ahead + byte);
        }
        memcpy(buffer + k * len, table + id(first + k) * args.table_stride, static_cast<size_t>(len));
      }
      scales.hold([&](int64_t k) { return id(first + k); }, count);
      for (int64_t k = 0; k < count; ++k) {
        const auto scaled = scales.template of<std::is_integral_v<C>>(k);
        const C* const codes = buffer + k * len;
        const auto values = [=](int64_t i) { return scaled(load_vector(codes + i), column + i); };
        store_values(len, values, out + (first + k) * n, static_cast<bool>(stream));
      }
    }
  }
}

static void dequantize(const GatherRowsArgs& args, int64_t begin, int64_t end) {
  with_code_type(args.code, [&](auto c) {
    using C = TypeOf<decltype(c)>;
    with_vector_type(args.out_type, [&](auto t) {
      using T = TypeOf<decltype(t)>;
      if (args.scales.per == ScalePer::kColumn) return dequantize_rows<C, T, ScaleOfColumn>(args, begin, end);
      return dequantize_rows<C, T, ScaleOfRow>(args, begin, end);
    });
  });
}

extern const GatherKernels kGather;
const GatherKernels kGather = {dequantize};

}  // namespace halfgnn::HALFGNN_ISA
