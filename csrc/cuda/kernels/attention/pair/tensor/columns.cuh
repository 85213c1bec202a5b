// Columns that edges add to dot attention (PairColumnArgs), at most kMaxTensorColumns, on tensor cores.
//
// Lanes 4 g + t have four columns of edges g and g + 8, 8 bytes each as they lie in memory: of a fragment of a
// (core/mma.cuh), rows g and g + 8, whose k come in another order. One product makes the dots with a row of the
// destination, another one the sums of factor * columns, for which MOVM transposes the fragment. A row of the
// destination is fp32 and enters as factors do: as two elements, value and what rounding it lost.
#pragma once

#include "../pass.h"
#include "rows.cuh"

namespace halfgnn::cuda {

// Of the edges of a batch.
template <typename T>
class TensorColumns {
  using Row = Fragment<T, kPairColumns>;

 public:
  // edges: group and group + 8. Columns past the last one, and past the last edge of a careful batch, are zeros.
  template <class Batch>
  __device__ TensorColumns(const Batch& batch, const PairColumnArgs& args, const uint32_t (&edges)[2],
                           const TensorLane& lane)
      : words_{} {
    const uint32_t first = static_cast<uint32_t>(lane.t) * kPairColumns;
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) {
      if (first >= args.count || (Batch::kIsCareful && !batch.has(lane.group + 8 * i))) continue;
      const uint64_t at = static_cast<uint64_t>(edges[i]) * args.count + first;
      words_[i] = Row::load_streaming(static_cast<const T*>(args.feat) + at).word;
    }
  }

  __device__ void multiply(const unsigned int (&row)[2], float (&sum)[4]) const {
    multiply_add<T>({words_[0].x, words_[1].x, words_[0].y, words_[1].y}, row, sum);
  }
  // Columns 4 (group / 2) + group % 2 and the second after that, of edges 2 t, 2 t + 1 and those 8 further.
  template <class Batch>
  __device__ void multiply_transposed(const Batch&, const TensorFactors<T>& factors, float (&sum)[4]) const {
    unsigned int a[4] = {};
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) {
      a[2 * i] = transpose_8x8(words_[i].x);
      a[2 * i + 1] = transpose_8x8(words_[i].y);
    }
    multiply_add<T>(a, factors.b, sum);
  }

 private:
  uint2 words_[2];
};

// A row of the destination that columns meet, and dots with it.
template <typename T>
class TensorOwnColumns {
 public:
  // row: (count); null: zeros. Dots are `factor` times as large. The whole warp takes part.
  __device__ void load(const float* row, uint32_t count, float factor, const TensorLane& lane) {
    float values[kPairColumns] = {};
    const uint32_t first = static_cast<uint32_t>(lane.t) * kPairColumns;
    if (row != nullptr && first < count) Fragment<float, kPairColumns>::load(row + first).widen(values);
    float largest = 0.f;
#pragma unroll
    for (int i = 0; i < kPairColumns; ++i) largest = fmaxf(largest, fabsf(values[i]));
    largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 2));
    // The row has at most kTensorFactor then, by a power of two: what rounding loses stays a normal number of fp16.
    const float power = __uint_as_float(__float_as_uint(largest) & 0x7f800000u);
    const float scale = fminf(kTensorFactor / power, kMaxScale);
    unit_ = factor / scale;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned int x = TensorFactors<T>::pair_of(values[2 * i] * scale);
      const unsigned int y = TensorFactors<T>::pair_of(values[2 * i + 1] * scale);
      words_[i] = lane.group % 2 == 0 ? lower_halves(x, y) : upper_halves(x, y);
    }
  }

  // Adds the dots of edges group and group + 8 to theirs.
  template <class Batch>
  __device__ void add_dots(const Batch&, const TensorColumns<T>& columns, float (&dots)[2]) const {
    float sum[4] = {};
    columns.multiply(words_, sum);
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) dots[i] = fmaf(unit_, joined_sum(sum[2 * i], sum[2 * i + 1]), dots[i]);
  }

 private:
  static constexpr float kMaxScale = 1.2676506e30f;  // 2^100

  unsigned int words_[2];  // in even columns of b the values, in odd ones what rounding lost
  float unit_;
};

// Sums of factor * columns over the edges of a row. Lanes 4 g + t have the same.
template <typename T>
class TensorColumnSums : public TensorFragmentSums<1> {
 public:
  using TensorFragmentSums<1>::TensorFragmentSums;

  template <class Batch>
  __device__ void add(const Batch& batch, const TensorColumns<T>& columns, const TensorFactors<T>& factors) {
    columns.multiply_transposed(batch, factors, sum_[0]);
  }

  // sums: as `finish` makes them. row: (count).
  __device__ static void store(const float (&sums)[kElements], float factor, float* row, uint32_t count,
                               const TensorLane& lane) {
    const auto column = static_cast<uint32_t>(lane.group / 2 * kPairColumns + lane.group % 2 + 2 * lane.t);
    if (lane.t < 2 && column < count) __stcs(row + column, factor * (lane.t == 0 ? sums[0] : sums[1]));
  }
};

}  // namespace halfgnn::cuda
