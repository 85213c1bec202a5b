// Single elements whose type is known at run time only: for the general kernels, and for what is done once a row.
#pragma once

#include "vector.cuh"

namespace halfgnn::cuda {

inline __device__ float load_scalar(const void* data, DType type, int64_t i) {
  switch (type) {
    case DType::kHalf: return Convert<__half>::widen(__ldg(static_cast<const __half*>(data) + i));
    case DType::kBFloat16: return Convert<__nv_bfloat16>::widen(__ldg(static_cast<const __nv_bfloat16*>(data) + i));
    default: return __ldg(static_cast<const float*>(data) + i);
  }
}

// Rounds once, to `type`.
inline __device__ void store_scalar(void* data, DType type, int64_t i, float value) {
  switch (type) {
    case DType::kHalf: static_cast<__half*>(data)[i] = Convert<__half>::round(value); return;
    case DType::kBFloat16: static_cast<__nv_bfloat16*>(data)[i] = Convert<__nv_bfloat16>::round(value); return;
    default: static_cast<float*>(data)[i] = value;
  }
}

// Alignment in bytes that store_rounded_as needs.
constexpr int64_t store_alignment(DType type, int count) {
  const int64_t bytes = size_of(type) * count;
  return bytes < kMaxAccessBytes ? bytes : kMaxAccessBytes;
}

// store_rounded to `type`, at element i.
template <int kCount>
__device__ void store_rounded_as(void* data, DType type, int64_t i, const float (&values)[kCount]) {
  switch (type) {
    case DType::kHalf: return store_rounded(static_cast<__half*>(data) + i, values);
    case DType::kBFloat16: return store_rounded(static_cast<__nv_bfloat16*>(data) + i, values);
    default: return store_rounded(static_cast<float*>(data) + i, values);
  }
}

}  // namespace halfgnn::cuda
