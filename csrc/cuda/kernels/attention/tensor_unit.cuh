// Of attention's backward on tensor cores: the unit in which the gradients of logits are split into two halves.
#pragma once

#include "dot_tensor_rows.cuh"

namespace halfgnn::cuda {

// Brings factors of any size to about kTensorFactor, by a power of two: two elements of fp16 hold them then.
class TensorUnit {
 public:
  __device__ void clear() { scale_ = 1.2676506e30f; }  // 2^100: any factor but the smallest lowers it
  // Before factors are scaled. Returns what the sums so far are multiplied by, mostly 1.
  __device__ float fit(const float (&factors)[2]) {
    const float largest = fmaxf(fabsf(factors[0]), fabsf(factors[1]));
    if (!__any_sync(kFullMask, largest * scale_ > 2 * kTensorFactor)) return 1.f;
    const float power = __uint_as_float(__float_as_uint(max_over_groups(largest)) & 0x7f800000u);
    const float before = scale_;
    scale_ = kTensorFactor / power;
    return scale_ / before;
  }
  __device__ float scaled(float factor) const { return factor * scale_; }
  // What sums of scaled factors are multiplied by.
  __device__ float unit() const { return 1.f / scale_; }

 private:
  float scale_;
};

}  // namespace halfgnn::cuda
