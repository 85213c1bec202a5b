// The rows of keys and values that a lane holds: of a batch of edges in flight, and as they are widened.
#pragma once

#include "edges.cuh"

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

template <typename T, int kVector>
__device__ void add_some(const Fragment<T, kVector>& row, int j, float (&values)[kPairWidth<kVector>]) {
  float more[kPairWidth<kVector>];
  widen_some(row, j, more);
#pragma unroll
  for (int i = 0; i < kPairWidth<kVector>; ++i) values[i] += more[i];
}

// Keys and values of kEdges edges. If there is but one row per edge, it is among the keys.
template <class Config, int kEdges>
struct PairRows {
  static constexpr int kRepeat = Config::kRepeat;
  static constexpr bool kHasSigns = Config::kHasSigns;
  typename Config::Row keys[kEdges][kRepeat];
  typename Config::Row values[Config::kTwoRows ? kEdges : 1][kRepeat];
  uint32_t signs[kEdges];  // with records of edges
  typename Config::Edges::template Held<kEdges> edges;

  // The values of edge u, which are its key if there is but one row.
  __device__ const typename Config::Row& value(int u, int r) const {
    if constexpr (Config::kTwoRows) {
      return values[u][r];
    } else {
      return keys[u][r];
    }
  }

  // Elements j * kPairWidth ... of the key and the value of edge u, with what the edge adds; or all elements.
  template <int kWidth>
  __device__ void widen_key(int u, int r, int j, float (&key)[kWidth]) const {
    widen_some(keys[u][r], j, key);
    edges.add_to_key(u, j, key);
  }
  template <int kWidth>
  __device__ void widen_value(int u, int r, int j, float (&value)[kWidth]) const {
    widen_some(this->value(u, r), j, value);
    edges.add_to_value(u, j, value);
  }
  template <int kVector>
  __device__ void widen_key(int u, int r, float (&key)[kVector]) const {
    keys[u][r].widen(key);
    edges.add_to_key(u, key);
  }
  template <int kVector>
  __device__ void widen_value(int u, int r, float (&values)[kVector]) const {
    value(u, r).widen(values);
    edges.add_to_value(u, values);
  }
};

}  // namespace halfgnn::cuda
