// exp of values that are not positive.
#pragma once

#include <math.h>

#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

// 2^n * 2^f with f in [-1/2, 1/2], by the polynomial of Cephes' expf (relative error below 1e-7). 0 below -87.3, where
// the result leaves the normal numbers. NaN stays NaN.
HALFGNN_INLINE f32x8 exp_nonpositive(f32x8 x) {
  const f32x8 low = splat(-87.33654f);
  const u32x8 tiny = bit_cast<u32x8>(x < low);
  const f32x8 clamped = select(tiny, low, x);
  const f32x8 magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  const f32x8 n = (clamped * splat(1.44269504f) + magic) - magic;
  const f32x8 r = (clamped - n * splat(0.693359375f)) - n * splat(-2.12194440e-4f);
  f32x8 y = splat(1.9875691500e-4f);
  y = y * r + splat(1.3981999507e-3f);
  y = y * r + splat(8.3334519073e-3f);
  y = y * r + splat(4.1665795894e-2f);
  y = y * r + splat(1.6666665459e-1f);
  y = y * r + splat(5.0000001201e-1f);
  y = y * (r * r) + r + splat(1.f);
  const u32x8 power = bit_cast<u32x8>(__builtin_convertvector(n, i32x8) + 127) << 23;
  const f32x8 result = select(tiny, splat(0.f), y * bit_cast<f32x8>(power));
  const u32x8 is_nan = bit_cast<u32x8>(x != x);
  return select(is_nan, x, result);
}
HALFGNN_INLINE void exp_values(float* x, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(exp_nonpositive(load8(x + i)), x + i);
  if (i == n) return;
  float rest[8] = {};
  for (int64_t j = i; j < n; ++j) rest[j - i] = x[j];
  store8(exp_nonpositive(load8(rest)), rest);
  for (int64_t j = i; j < n; ++j) x[j] = rest[j - i];
}
HALFGNN_INLINE void exp_values(double* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = exp(x[i]);
}

}  // namespace halfgnn::HALFGNN_ISA
