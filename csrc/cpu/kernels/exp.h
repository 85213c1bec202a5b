// exp of values that are not positive.
#pragma once

#include <math.h>

#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

// 2^n * 2^f with f in [-1/2, 1/2], by the polynomial of Cephes' expf (relative error below 1e-7). 0 below -87.3, where
// the result leaves the normal numbers. NaN stays NaN.
template <class V>
HALFGNN_INLINE V exp_nonpositive(V x) {
  using W = WordsLike<V>;
  constexpr int L = kLanesOf<V>;
  const V low = splat<L>(-87.33654f);
  const W tiny = bit_cast<W>(x < low);
  const V clamped = select(tiny, low, x);
  const V magic = splat<L>(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  const V n = (clamped * splat<L>(1.44269504f) + magic) - magic;
  const V r = (clamped - n * splat<L>(0.693359375f)) - n * splat<L>(-2.12194440e-4f);
  V y = splat<L>(1.9875691500e-4f);
  y = y * r + splat<L>(1.3981999507e-3f);
  y = y * r + splat<L>(8.3334519073e-3f);
  y = y * r + splat<L>(4.1665795894e-2f);
  y = y * r + splat<L>(1.6666665459e-1f);
  y = y * r + splat<L>(5.0000001201e-1f);
  y = y * (r * r) + r + splat<L>(1.f);
  const W power = bit_cast<W>(__builtin_convertvector(n, typename VectorsOf<L>::Integers) + 127) << 23;
  const V result = select(tiny, splat<L>(0.f), y * bit_cast<V>(power));
  const W is_nan = bit_cast<W>(x != x);
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
