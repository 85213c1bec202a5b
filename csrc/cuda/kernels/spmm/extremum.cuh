// The order that makes an edge the maximum or minimum, and how results are written.
//
// For each element of a row by itself, edges are ordered: nan is better than all else, the greater value is better than
// the lesser, and of equals the first edge is better. That order is total, so the result does not depend on how a row
// is divided. A minimum is a maximum of negated values.
#pragma once

#include "../core/ids.cuh"
#include "../core/scalar.cuh"

namespace halfgnn::cuda {

// Stands for no edge; its value is -inf, so that it is worse than any edge.
constexpr uint32_t kNoPosition = 0xffffffffu;

struct ExtremumOut {
  Ids edge_ids;
  bool negate;
  void* out;
  DType out_type;
  void* arg;
  bool arg_is_int64;
};

// The better of two edges takes the place of the second.
inline __device__ void take_better(float value, uint32_t position, float& best, uint32_t& best_position) {
  const bool is_nan = best != best;
  const bool wins = !is_nan && !(value <= best);
  const bool ties = is_nan ? value != value : value == best;
  if (wins || (ties && position < best_position)) {
    best = value;
    best_position = position;
  }
}

inline __device__ void flip_bits(uint32_t mask, unsigned short& word) { word ^= static_cast<unsigned short>(mask); }
inline __device__ void flip_bits(uint32_t mask, unsigned int& word) { word ^= mask; }
inline __device__ void flip_bits(uint32_t mask, uint2& word) {
  flip_bits(mask, word.x);
  flip_bits(mask, word.y);
}
inline __device__ void flip_bits(uint32_t mask, uint4& word) {
  flip_bits(mask, word.x);
  flip_bits(mask, word.y);
  flip_bits(mask, word.z);
  flip_bits(mask, word.w);
}
template <typename T>
constexpr uint32_t kSignBits = sizeof(T) == 2 ? 0x80008000u : 0x80000000u;

// Writes results that are read once, in as few accesses as possible.
template <int kCount>
__device__ void store_words(uint32_t* out, const uint32_t (&words)[kCount]) {
  if constexpr (kCount % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      __stcs(reinterpret_cast<uint4*>(out + i), make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]));
    }
  } else if constexpr (kCount % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) __stcs(reinterpret_cast<uint2*>(out + i), make_uint2(words[i], words[i + 1]));
  } else {
    static_assert(kCount == 1, "a power of 2");
    __stcs(out, words[0]);
  }
}

// Ids as elements i ... of an int32 or int64 array. `high` is the other half of an int64: -1 for ids that are -1.
template <int kCount>
__device__ void store_ids(void* out, bool is_int64, int64_t i, const uint32_t (&ids)[kCount], uint32_t high) {
  if (!is_int64) return store_words(static_cast<uint32_t*>(out) + i, ids);
  uint32_t words[2 * kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    words[2 * k] = ids[k];
    words[2 * k + 1] = high;
  }
  store_words(static_cast<uint32_t*>(out) + 2 * i, words);
}

// Elements i ... of the results of a row, from best values and positions. A row without edges has kNoPosition for each;
// its results are 0 and -1.
template <int kCount>
__device__ void store_extrema(const ExtremumOut& result, int64_t i, bool has_edges, const float (&best)[kCount],
                              const uint32_t (&position)[kCount]) {
  const uint32_t flip = result.negate ? kSignBits<float> : 0, keep = has_edges ? ~0u : 0;
  float values[kCount];
  uint32_t ids[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    values[k] = __uint_as_float((__float_as_uint(best[k]) ^ flip) & keep);
    ids[k] = position[k];
  }
  if (has_edges) result.edge_ids.look_up(ids);
  store_rounded_as(result.out, result.out_type, i, values);
  store_ids(result.arg, result.arg_is_int64, i, ids, ~keep);
}

}  // namespace halfgnn::cuda
