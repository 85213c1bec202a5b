// Arithmetic on blocks of a row in registers: Lanes<N> of N fp32 vectors, or Single<A>, one element of type A.
// Both have the same operations, so that a kernel is written once.
#pragma once

#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

// ---- vectors

template <int N>
struct Lanes {
  Floats v[N];
};
template <int N>
HALFGNN_INLINE Lanes<N> multiply_add(Lanes<N> x, Lanes<N> y, Lanes<N> sum) {
  for (int i = 0; i < N; ++i) sum.v[i] += x.v[i] * y.v[i];
  return sum;
}
template <int N>
HALFGNN_INLINE Lanes<N> multiply_add(Floats x, Lanes<N> y, Lanes<N> sum) {
  for (int i = 0; i < N; ++i) sum.v[i] += x * y.v[i];
  return sum;
}
template <int N>
HALFGNN_INLINE Lanes<N> add(Lanes<N> x, Lanes<N> y) {
  for (int i = 0; i < N; ++i) x.v[i] += y.v[i];
  return x;
}
template <int N>
HALFGNN_INLINE Lanes<N> scale(Floats a, Lanes<N> x) {
  for (int i = 0; i < N; ++i) x.v[i] *= a;
  return x;
}
template <int N>
HALFGNN_INLINE Floats fold(Lanes<N> x) {
  for (int i = 1; i < N; ++i) x.v[0] += x.v[i];
  return x.v[0];
}
// Workspace holds lanes in the order that they have in registers.
template <int N>
HALFGNN_INLINE Lanes<N> load_lanes(const float* p) {
  Lanes<N> r;
  for (int i = 0; i < N; ++i) r.v[i] = load_vector(p + kLanes * i);
  return r;
}
template <int N>
HALFGNN_INLINE void store_lanes(Lanes<N> x, float* p) {
  for (int i = 0; i < N; ++i) store_vector(x.v[i], p + kLanes * i);
}
template <int N>
HALFGNN_INLINE Lanes<N> multiply(Lanes<N> x, Lanes<N> y) {
  for (int i = 0; i < N; ++i) x.v[i] *= y.v[i];
  return x;
}
template <int N>
HALFGNN_INLINE Lanes<N> subtract(Lanes<N> x, Lanes<N> y) {
  for (int i = 0; i < N; ++i) x.v[i] -= y.v[i];
  return x;
}
// x where `mask` has all bits, 0 where it has none
template <int N>
HALFGNN_INLINE Lanes<N> keep(Lanes<N> x, Lanes<N> mask) {
  for (int i = 0; i < N; ++i) x.v[i] = bit_cast<Floats>(bit_cast<Words>(x.v[i]) & bit_cast<Words>(mask.v[i]));
  return x;
}
// LeakyReLU
template <int N>
HALFGNN_INLINE Lanes<N> leaky(Lanes<N> z, Floats slope) {
  for (int i = 0; i < N; ++i) z.v[i] = z.v[i] > splat(0.f) ? z.v[i] : z.v[i] * slope;
  return z;
}
// sum += z > 0 ? above : below
template <int N>
HALFGNN_INLINE Lanes<N> add_by_sign(Lanes<N> z, Floats above, Floats below, Lanes<N> sum) {
  for (int i = 0; i < N; ++i) sum.v[i] += z.v[i] > splat(0.f) ? above : below;
  return sum;
}
// x where it is finite, else 0
template <int N>
HALFGNN_INLINE Lanes<N> finite_or_zero(Lanes<N> x) {
  for (int i = 0; i < N; ++i) x.v[i] = x.v[i] - x.v[i] == splat(0.f) ? x.v[i] : splat(0.f);
  return x;
}

#if defined(HALFGNN_F16C)
// out[k * stride] = sum_lanes(fold(sums[k])) for four of them. Halves are added in pairs, then turned so that one
// addition serves all four.
HALFGNN_INLINE __m256 add_halves(Floats x, Floats y) {
  const __m256 a = bit_cast<__m256>(x), b = bit_cast<__m256>(y);
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
template <int N>
HALFGNN_INLINE void store_four_sums(const Lanes<N>* sums, float* out, int64_t stride) {
  const __m256 x = add_halves(fold(sums[0]), fold(sums[1])), y = add_halves(fold(sums[2]), fold(sums[3]));
  const __m256 pairs = _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
  const Floats all = bit_cast<Floats>(_mm256_add_ps(pairs, _mm256_movehdup_ps(pairs)));
  out[0] = all[0];
  out[stride] = all[4];
  out[2 * stride] = all[2];
  out[3 * stride] = all[6];
}
#else
template <int N>
HALFGNN_INLINE void store_four_sums(const Lanes<N>* sums, float* out, int64_t stride) {
  for (int k = 0; k < 4; ++k) out[k * stride] = sum_lanes(fold(sums[k]));
}
#endif

// ---- single elements

template <class A>
struct Single {
  A v;
};
template <class A>
HALFGNN_INLINE Single<A> multiply_add(A x, Single<A> y, Single<A> sum) {
  return {sum.v + x * y.v};
}
template <class A>
HALFGNN_INLINE Single<A> multiply_add(Single<A> x, Single<A> y, Single<A> sum) {
  return {sum.v + x.v * y.v};
}
template <class A>
HALFGNN_INLINE Single<A> add(Single<A> x, Single<A> y) {
  return {x.v + y.v};
}
template <class A>
HALFGNN_INLINE Single<A> scale(A a, Single<A> x) {
  return {a * x.v};
}
template <class A>
HALFGNN_INLINE Single<A> multiply(Single<A> x, Single<A> y) {
  return {x.v * y.v};
}
template <class A>
HALFGNN_INLINE Single<A> subtract(Single<A> x, Single<A> y) {
  return {x.v - y.v};
}
template <class A>
HALFGNN_INLINE Single<A> keep(Single<A> x, Single<A>) {
  return x;
}
template <class A>
HALFGNN_INLINE Single<A> leaky(Single<A> z, A slope) {
  return {z.v > 0 ? z.v : z.v * slope};
}
template <class A>
HALFGNN_INLINE Single<A> add_by_sign(Single<A> z, A above, A below, Single<A> sum) {
  return {sum.v + (z.v > 0 ? above : below)};
}
template <class A>
HALFGNN_INLINE Single<A> finite_or_zero(Single<A> x) {
  return {x.v - x.v == 0 ? x.v : A(0)};
}

}  // namespace halfgnn::HALFGNN_ISA
