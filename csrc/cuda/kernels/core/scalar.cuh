// Single elements whose type is known at run time only: for the general kernels, and for what is done once per row.
#pragma once

#include "types.cuh"
#include "vector.cuh"

namespace halfgnn::cuda {

inline __device__ float load_scalar(const void* data, DType type, int64_t i) {
  return with_type(type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    return Convert<T>::widen(__ldg(static_cast<const T*>(data) + i));
  });
}

// Rounds once, to `type`.
inline __device__ void store_scalar(void* data, DType type, int64_t i, float value) {
  with_type(type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    static_cast<T*>(data)[i] = Convert<T>::round(value);
  });
}

// Alignment in bytes that store_rounded_as needs.
constexpr int64_t store_alignment(DType type, int count) {
  const int64_t bytes = size_of(type) * count;
  return bytes < kMaxAccessBytes ? bytes : kMaxAccessBytes;
}

// store_rounded to `type`, at element i.
template <int kCount>
__device__ void store_rounded_as(void* data, DType type, int64_t i, const float (&values)[kCount]) {
  with_type(type, [&](auto t) { store_rounded(static_cast<TypeOf<decltype(t)>*>(data) + i, values); });
}

}  // namespace halfgnn::cuda
