// Of attention's backward on tensor cores: the unit in which the gradients of logits are split into two halves.
#pragma once

#include "rows.cuh"

namespace halfgnn::cuda {

// Brings factors of any size to about kTensorFactor, by a power of two: two elements of fp16 hold them then.
class TensorUnit {
 public:
  __device__ void clear() { scale_ = 1.2676506e30f; }  // 2^100: any factor but the smallest lowers it
  // Before factors are scaled: of edges group and group + 8. Returns what the sums so far are
  // multiplied by, mostly 1.
  __device__ float fit(const float (&factors)[2]) {
    const float largest = fmaxf(fabsf(factors[0]), fabsf(factors[1]));
    return is_larger(largest) ? lower_for(max_over_groups(largest)) : 1.f;
  }
  __device__ float scaled(float factor) const { return factor * scale_; }
  // What sums of scaled factors are multiplied by.
  __device__ float unit() const { return 1.f / scale_; }

 private:
  // Of any lane.
  __device__ bool is_larger(float factor) const { return __any_sync(kFullMask, factor * scale_ > 2 * kTensorFactor); }
  __device__ float lower_for(float largest) {
    const float power = __uint_as_float(__float_as_uint(largest) & 0x7f800000u);
    const float before = scale_;
    scale_ = kTensorFactor / power;
    return scale_ / before;
  }

  float scale_;
};

}  // namespace halfgnn::cuda
