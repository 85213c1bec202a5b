// Values that are the same for all lanes of a warp, and that the compiler knows to be the same: what depends on them
// alone is worked out once per warp. The whole warp takes part.
#pragma once

#include "launch.cuh"

namespace halfgnn::cuda {

// The value of lane 0.
inline __device__ uint32_t uniform(uint32_t value) { return __shfl_sync(kFullMask, value, 0); }

// A value of all lanes, in a register: what launches are given, and what is made of it, ptxas works out wherever it is
// used.
template <typename T>
__device__ uint32_t kept(T value) {
  return uniform(static_cast<uint32_t>(value));
}

// The same value, but the compiler no longer knows how it was computed, and does not compute it again.
inline __device__ int as_computed(int value) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(value));
#endif
  return value;
}

inline __device__ int shuffled_max(int value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = max(value, __shfl_xor_sync(kFullMask, value, distance));
  }
  return __shfl_sync(kFullMask, value, 0);
}
// The greatest of the lanes' values.
inline __device__ int warp_max(int value) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800  // of which CUDA's headers declare it
  if (HALFGNN_ARCH >= 800) return __reduce_max_sync(kFullMask, value);
#endif
  return shuffled_max(value);
}

}  // namespace halfgnn::cuda
