// What edge softmax and the fused attentions share.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>

namespace halfgnn::cuda {

// Below every logit but -inf, and finite: no difference from a maximum is nan unless a logit is nan or +inf. In a row
// of -inf alone the sum of exponentials is 0, and 0 / 0 makes it nan.
constexpr float kLowestLogit = -FLT_MAX;

// exp for differences of logits. For half results, whose own rounding is 500 times as large, the hardware's: its
// relative error is about 6e-8 |x|.
template <typename T>
__device__ float exp_of_difference(float x) {
  if constexpr (sizeof(T) == 4) {
    return expf(x);
  } else {
    const float scaled = x * 1.44269504f;
#ifdef __CUDA_ARCH__
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(scaled));
    return result;
#else
    return exp2f(scaled);
#endif
  }
}

// Of a sum of exponentials. For half results the hardware's, too: relative errors of 1e-7.
template <typename T>
__device__ float log_of_sum(float x) {
  return sizeof(T) == 4 ? logf(x) : __logf(x);
}
template <typename T>
__device__ float reciprocal_of(float x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) < 4) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }
#endif
  return 1.f / x;
}

}  // namespace halfgnn::cuda
