// exp of values that are not positive.
#pragma once

#include <math.h>

#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

// 2^n * 2^f with f in [-1/2, 1/2], by the polynomial of Cephes' expf (relative error below 1e-7). 0 below -87.3, where
// the result leaves the normal numbers. NaN stays NaN.
HALFGNN_INLINE Floats exp_nonpositive(Floats x) {
  const Floats low = splat(-87.33654f);
  const Words tiny = bit_cast<Words>(x < low);
  const Floats clamped = select(tiny, low, x);
  const Floats magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  const Floats n = (clamped * splat(1.44269504f) + magic) - magic;
  const Floats r = (clamped - n * splat(0.693359375f)) - n * splat(-2.12194440e-4f);
  Floats y = splat(1.9875691500e-4f);
  y = y * r + splat(1.3981999507e-3f);
  y = y * r + splat(8.3334519073e-3f);
  y = y * r + splat(4.1665795894e-2f);
  y = y * r + splat(1.6666665459e-1f);
  y = y * r + splat(5.0000001201e-1f);
  y = y * (r * r) + r + splat(1.f);
  const Words power = bit_cast<Words>(__builtin_convertvector(n, Integers) + 127) << 23;
  const Floats result = select(tiny, splat(0.f), y * bit_cast<Floats>(power));
  const Words is_nan = bit_cast<Words>(x != x);
  return select(is_nan, x, result);
}
HALFGNN_INLINE void exp_values(float* x, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_vector(exp_nonpositive(load_vector(x + i)), x + i);
  if (i == n) return;
  float rest[kLanes] = {};
  for (int64_t j = i; j < n; ++j) rest[j - i] = x[j];
  store_vector(exp_nonpositive(load_vector(rest)), rest);
  for (int64_t j = i; j < n; ++j) x[j] = rest[j - i];
}
HALFGNN_INLINE void exp_values(double* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = exp(x[i]);
}

}  // namespace halfgnn::HALFGNN_ISA
