// exp of values that are not positive.
#pragma once

#include <math.h>

#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

// 2^n * 2^f with f in [-1/2, 1/2], by the polynomial of Cephes' expf (relative error below 1e-7). 0 below -87.3, where
// the result leaves the normal numbers. NaN stays NaN.
template <class V>
HALFGNN_INLINE V exp_nonpositive(V x) {
  constexpr int L = kLanesOf<V>;
  // Of -88, n is -127, and the exponent's bits are 0.
  const V clamped = choose_lanes(greater(splat<L>(-87.33654f), x), splat<L>(-88.f), x);
  // 1.5 * 2^23 + 127: a sum with it is rounded to an integer, and its lowest bits are the biased exponent n + 127.
  const V magic = splat<L>(12583039.f);
  const V biased = clamped * splat<L>(1.44269504f) + magic;
  const V n = biased - magic;
  const V r = (clamped - n * splat<L>(0.693359375f)) - n * splat<L>(-2.12194440e-4f);
  V y = splat<L>(1.9875691500e-4f);
  y = y * r + splat<L>(1.3981999507e-3f);
  y = y * r + splat<L>(8.3334519073e-3f);
  y = y * r + splat<L>(4.1665795894e-2f);
  y = y * r + splat<L>(1.6666665459e-1f);
  y = y * r + splat<L>(5.0000001201e-1f);
  y = y * (r * r) + r + splat<L>(1.f);
  return y * bit_cast<V>(bit_cast<WordsLike<V>>(biased) << 23);
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
