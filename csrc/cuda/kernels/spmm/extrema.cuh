// The largest and the smallest value of each column, and the edges they are of.
//
// nan is better than all else, and of equals the first edge is better (extremum.cuh). A nan makes only the maximum: a
// minimum whose maximum is nan is that nan, of the same edge.
//
// What a lane holds of its edges is Extrema. The pieces of a long row are joined as integers of 64 bits, in which the
// value comes before the position.
#pragma once

#include <climits>
#include <cmath>
#include <type_traits>

#include "../core/bytes.cuh"
#include "extremum.cuh"

namespace halfgnn::cuda {

// An edge, by its place in the row or piece, or by its position.
struct Winner {
  float value;
  uint32_t offset;
};

// Elements of two bytes as signed integers in the order of their values, above two bytes of the edge's place: pieces of
// long rows have fewer than 2^16 edges (rows.cuh). The maximum has the places in reverse.
template <typename T, int kVector>
struct HalfWinners {
  int32_t max[kVector], min[kVector];

  // Takes what the lane at this distance holds. The whole warp takes part.
  __device__ void join(int distance) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      max[i] = ::max(max[i], __shfl_xor_sync(kFullMask, max[i], distance));
      min[i] = ::min(min[i], __shfl_xor_sync(kFullMask, min[i], distance));
    }
  }
  // A nan at this place, which is greater than all else.
  __device__ void take_nan(int i, uint32_t offset) {
    max[i] = ::max(max[i], static_cast<int32_t>(0x7fff0000 | (~offset & 0xffff)));
  }

  __device__ Winner largest(int i) const {
    return {value_of(max[i]), 0xffff - (static_cast<uint32_t>(max[i]) & 0xffff)};
  }
  __device__ Winner smallest(int i) const { return {value_of(min[i]), static_cast<uint32_t>(min[i]) & 0xffff}; }

 private:
  __device__ static float value_of(int32_t key) {
    const int32_t ordered = key >> 16;
    const auto bits = static_cast<unsigned short>(ordered ^ (ordered >> 15 & 0x7fff));
    return Convert<T>::widen(bits_as<T>(bits));
  }
};

// All bits of those halves of which a is greater than b. nan is not.
template <class Pair>
__device__ uint32_t where_greater(Pair a, Pair b) {
  // Before sm_90 there is no such comparison of bfloat16. A difference is 0 only of equal values, and nan has no sign.
  if constexpr (std::is_same_v<Pair, __nv_bfloat162>) {
    if (HALFGNN_ARCH < 900) return bytes_of<0xbb99>(bits_as<uint32_t>(__hsub2(b, a)), 0);
  }
  return __hgt2_mask(a, b);
}

// The elements of a fragment by pairs.
template <typename T, int kVector>
struct PairWords {
  uint32_t word[(kVector + 1) / 2];

  static __device__ PairWords of(const Fragment<T, kVector>& row) {
    if constexpr (kVector == 1) {
      return {{row.word}};
    } else {
      return bits_as<PairWords>(row.word);
    }
  }
};

// In pairs of two bytes: values, and places of edges. A nan is not seen: it is sought when the row is done, if the sum
// is nan.
template <typename T, int kVector>
struct HalfExtrema {
  static constexpr int kPairs = (kVector + 1) / 2;
  using Pair = typename Convert<T>::Pair;
  using Winners = HalfWinners<T, kVector>;
  static constexpr bool kSeeksNan = true;

  uint32_t max[kPairs], max_at[kPairs], min[kPairs], min_at[kPairs];

  // first: the place of the first edge, which is the winner if all values are the same infinity.
  __device__ void clear(uint32_t first) {
    const uint32_t infinity = twice(bits_as<unsigned short>(Convert<T>::round(INFINITY)));
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      max[p] = infinity ^ 0x80008000;
      min[p] = infinity;
      max_at[p] = min_at[p] = twice(first);
    }
  }

  // Edges come in ascending order, so that a later one wins only if it is better.
  __device__ void take(const Fragment<T, kVector>& row, uint32_t offset) {
    const auto words = PairWords<T, kVector>::of(row);
    const uint32_t place = twice(offset);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const uint32_t word = words.word[p];
      const Pair x = bits_as<Pair>(word);
      take_where(where_greater(x, bits_as<Pair>(max[p])), word, place, max[p], max_at[p]);
      take_where(where_greater(bits_as<Pair>(min[p]), x), word, place, min[p], min_at[p]);
    }
  }

  __device__ Winners winners() const {
    Winners result;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const int p = i / 2;
      const uint32_t high = in_order(max[p]), low = in_order(min[p]), reversed = ~max_at[p];
      const bool is_low = i % 2 == 0;
      result.max[i] =
          static_cast<int32_t>(is_low ? bytes_of<0x1054>(high, reversed) : bytes_of<0x3276>(high, reversed));
      result.min[i] =
          static_cast<int32_t>(is_low ? bytes_of<0x1054>(low, min_at[p]) : bytes_of<0x3276>(low, min_at[p]));
    }
    return result;
  }

 private:
  __device__ static uint32_t twice(uint32_t half) { return (half & 0xffff) * 0x10001; }
  __device__ static void take_where(uint32_t mask, uint32_t value, uint32_t place, uint32_t& best, uint32_t& best_at) {
    best = (value & mask) | (best & ~mask);
    best_at = (place & mask) | (best_at & ~mask);
  }
  // -0 is 0.
  __device__ static uint32_t in_order(uint32_t pair) {
    pair = bits_as<uint32_t>(__hadd2(bits_as<Pair>(pair), Convert<T>::round(0.f, 0.f)));
    return pair ^ (bytes_of<0xbb99>(pair, 0) & 0x7fff7fff);
  }
};

template <typename T, int kVector>
struct Extrema : HalfExtrema<T, kVector> {};

template <int kVector>
struct Extrema<float, kVector> {
  using Winners = Extrema;
  static constexpr bool kSeeksNan = false;  // take() sees it

  Winner max[kVector], min[kVector];

  __device__ void take_nan(int, uint32_t) {}
  __device__ const Winners& winners() const { return *this; }

  __device__ void clear(uint32_t first) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      max[i] = {-INFINITY, first};
      min[i] = {INFINITY, first};
    }
  }

  // Edges come in ascending order, so that a later one wins only if it is better.
  __device__ void take(const Fragment<float, kVector>& row, uint32_t offset) {
    float values[kVector];
    row.widen(values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      take_if(!(values[i] <= max[i].value) && max[i].value == max[i].value, values[i], offset, max[i]);
      take_if(values[i] < min[i].value, values[i], offset, min[i]);
    }
  }

  __device__ void join(int distance) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const Winner larger = other(max[i], distance), smaller = other(min[i], distance);
      take_better(larger.value, larger.offset, max[i].value, max[i].offset);
      take_if(smaller.value < min[i].value || (smaller.value == min[i].value && smaller.offset < min[i].offset),
              smaller.value, smaller.offset, min[i]);
    }
  }

  __device__ Winner largest(int i) const { return max[i]; }
  __device__ Winner smallest(int i) const { return min[i]; }

 private:
  __device__ static void take_if(bool wins, float value, uint32_t offset, Winner& best) {
    best.value = wins ? value : best.value;
    best.offset = wins ? offset : best.offset;
  }
  __device__ static Winner other(const Winner& own, int distance) {
    return {__shfl_xor_sync(kFullMask, own.value, distance), __shfl_xor_sync(kFullMask, own.offset, distance)};
  }
};

// ---- nan, which halves do not see.

// Whether there may have been one among what a lane took: what their sum is. inf of both signs, or one of them and a
// sum that grew too large, look the same.
template <typename T, int kVector>
struct NanTrace {
  static constexpr int kPairs = (kVector + 1) / 2;
  using Pair = typename Convert<T>::Pair;
  Pair sum[kPairs];

  __device__ void clear() {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) sum[p] = Convert<T>::round(0.f, 0.f);
  }
  __device__ void take(const Fragment<T, kVector>& row) {
    const auto words = PairWords<T, kVector>::of(row);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) sum[p] = __hadd2(sum[p], bits_as<Pair>(words.word[p]));
  }
  __device__ bool may_have_nan() const {
    bool found = false;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) found = found || !__hbeq2(sum[p], sum[p]);
    return found;
  }
};
template <int kVector>
struct NanTrace<float, kVector> {
  __device__ void clear() {}
  __device__ void take(const Fragment<float, kVector>&) {}
  __device__ bool may_have_nan() const { return false; }
};

// Reads the edges of a group again, the lane's r-th vector, and hands their nan to its winners.
template <class Row, int kVector, class Gather, class Source, class Team, class TeamRow, class Winners>
__device__ void find_nans(const Gather& gather, const Source& feat, const Team& team, const TeamRow& row, int r,
                          Winners& winners) {
  for (int place = team.group; place < row.num_edges; place += team.num_groups) {
    const uint32_t column = gather.feat_rows.id(row.begin + static_cast<uint32_t>(place));
    float x[kVector];
    Row::load(feat.at(feat.of_row(column, gather.row_bytes), r)).widen(x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (x[i] != x[i]) winners.take_nan(i, static_cast<uint32_t>(place));
    }
  }
}

// ---- Winners of pieces, by the position of their edge.

inline __device__ int32_t ordered_bits(float value) {
  const int32_t bits = value == value ? bits_as<int32_t>(value + 0.f) : INT_MAX;
  return bits ^ (bits >> 31 & INT_MAX);
}
// The value before the position, of equal values the first; of these the greatest is the winner of a maximum.
inline __device__ int64_t largest_key(float value, uint32_t position) {
  return static_cast<int64_t>(ordered_bits(value)) * (int64_t{1} << 32) + ~position;
}
// The greatest of these is the winner of a minimum.
inline __device__ int64_t smallest_key(float value, uint32_t position) {
  return ~(static_cast<int64_t>(ordered_bits(value)) * (int64_t{1} << 32) + position);
}
template <int kCount>
__device__ void store_keys(int64_t* out, const int64_t (&keys)[kCount]) {
  uint32_t words[2 * kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    words[2 * i] = static_cast<uint32_t>(keys[i]);
    words[2 * i + 1] = static_cast<uint32_t>(keys[i] >> 32);
  }
  store_words(reinterpret_cast<uint32_t*>(out), words);
}
inline __device__ float value_of_ordered(int32_t ordered) {
  return bits_as<float>(ordered ^ (ordered >> 31 & INT_MAX));
}
inline __device__ Winner largest_of_key(int64_t key) {
  return {value_of_ordered(static_cast<int32_t>(key >> 32)), ~static_cast<uint32_t>(key)};
}
inline __device__ Winner smallest_of_key(int64_t key) {
  return {value_of_ordered(static_cast<int32_t>(~key >> 32)), static_cast<uint32_t>(~key)};
}

}  // namespace halfgnn::cuda
