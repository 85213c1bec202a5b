// The rows of keys and values that a lane holds: of a batch of edges in flight, and as they are widened.
#pragma once

#include "pair_config.cuh"

namespace halfgnn::cuda {

// The same row, of which the compiler knows nothing. What is made of a row that stays the same it would otherwise make
// once for all edges, and keep in two or three times the registers.
template <typename T, int kVector>
__device__ Fragment<T, kVector> as_new(const Fragment<T, kVector>& row) {
  constexpr int kWords = Fragment<T, kVector>::kBytes / 4;
  if constexpr (kWords == 0) {
    return row;
  } else {
    struct Words {
      unsigned int value[kWords];
    };
    auto words = bits_as<Words>(row.word);
#ifdef __CUDA_ARCH__
#pragma unroll
    for (int i = 0; i < kWords; ++i) asm volatile("" : "+r"(words.value[i]));
#endif
    return {bits_as<typename Fragment<T, kVector>::Word>(words)};
  }
}

// Elements that are widened at a time.
template <int kVector>
constexpr int kPairWidth = kVector < 2 ? kVector : 2;

// Elements j * kPairWidth ... of what the fragment holds.
template <typename T, int kVector>
__device__ void widen_some(const Fragment<T, kVector>& row, int j, float (&values)[kPairWidth<kVector>]) {
  if constexpr (kVector == 1) {
    values[0] = row.value();
  } else {
    const auto pairs = bits_as<typename Fragment<T, kVector>::Pairs>(row.word);
    const float2 value = Convert<T>::widen(pairs.value[j]);
    values[0] = value.x;
    values[1] = value.y;
  }
}

// Keys and values of kEdges edges. If there is but one row per edge, it is among the keys.
template <class Config, int kEdges>
struct PairRows {
  static constexpr int kRepeat = Config::kRepeat;
  typename Config::Row keys[kEdges][kRepeat];
  typename Config::Row values[Config::kTwoRows ? kEdges : 1][kRepeat];
  uint32_t signs[kEdges];  // with records of edges

  // The values of edge u, which are its key if there is but one row.
  __device__ const typename Config::Row& value(int u, int r) const {
    if constexpr (Config::kTwoRows) {
      return values[u][r];
    } else {
      return keys[u][r];
    }
  }
};

}  // namespace halfgnn::cuda
