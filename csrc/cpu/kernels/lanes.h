// Arithmetic on blocks of a row in registers: Lanes<N, L> of N vectors of L fp32 values, or Single<A>, one element of
// type A. Both have the same operations, so that a kernel is written once.
#pragma once

#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

// ---- vectors

template <int N, int L = kLanes>
struct Lanes {
  FloatsOf<L> v[N];
};
template <int N, int L>
HALFGNN_INLINE Lanes<N, L> multiply_add(Lanes<N, L> x, Lanes<N, L> y, Lanes<N, L> sum) {
  for (int i = 0; i < N; ++i) sum.v[i] += x.v[i] * y.v[i];
  return sum;
}
// sum += the products of x and y, of all their vectors
template <int N, int L>
HALFGNN_INLINE Lanes<1, L> add_dot(Lanes<N, L> x, Lanes<N, L> y, Lanes<1, L> sum) {
  for (int i = 0; i < N; ++i) sum.v[0] += x.v[i] * y.v[i];
  return sum;
}
template <int N, int L>
HALFGNN_INLINE Lanes<N, L> multiply_add(FloatsOf<L> x, Lanes<N, L> y, Lanes<N, L> sum) {
  for (int i = 0; i < N; ++i) sum.v[i] += x * y.v[i];
  return sum;
}
template <int N, int L>
HALFGNN_INLINE Lanes<N, L> add(Lanes<N, L> x, Lanes<N, L> y) {
  for (int i = 0; i < N; ++i) x.v[i] += y.v[i];
  return x;
}
template <int N, int L>
HALFGNN_INLINE Lanes<N, L> scale(FloatsOf<L> a, Lanes<N, L> x) {
  for (int i = 0; i < N; ++i) x.v[i] *= a;
  return x;
}
template <int N, int L>
HALFGNN_INLINE FloatsOf<L> fold(Lanes<N, L> x) {
  for (int i = 1; i < N; ++i) x.v[0] += x.v[i];
  return x.v[0];
}
// Workspace holds lanes in the order that they have in registers.
template <int N, int L = kLanes>
HALFGNN_INLINE Lanes<N, L> load_lanes(const float* p) {
  Lanes<N, L> r;
  for (int i = 0; i < N; ++i) r.v[i] = load_vector<L>(p + L * i);
  return r;
}
template <int N, int L>
HALFGNN_INLINE void store_lanes(Lanes<N, L> x, float* p) {
  for (int i = 0; i < N; ++i) store_vector(x.v[i], p + L * i);
}
template <int N, int L>
HALFGNN_INLINE Lanes<N, L> multiply(Lanes<N, L> x, Lanes<N, L> y) {
  for (int i = 0; i < N; ++i) x.v[i] *= y.v[i];
  return x;
}
template <int N, int L>
HALFGNN_INLINE Lanes<N, L> subtract(Lanes<N, L> x, Lanes<N, L> y) {
  for (int i = 0; i < N; ++i) x.v[i] -= y.v[i];
  return x;
}
// x where `mask` has all bits, 0 where it has none
template <int N, int L>
HALFGNN_INLINE Lanes<N, L> keep(Lanes<N, L> x, Lanes<N, L> mask) {
  for (int i = 0; i < N; ++i)
    x.v[i] = bit_cast<FloatsOf<L>>(bit_cast<WordsOf<L>>(x.v[i]) & bit_cast<WordsOf<L>>(mask.v[i]));
  return x;
}
// LeakyReLU
template <int N, int L>
HALFGNN_INLINE Lanes<N, L> leaky(Lanes<N, L> z, FloatsOf<L> slope) {
  for (int i = 0; i < N; ++i) z.v[i] = z.v[i] > splat<L>(0.f) ? z.v[i] : z.v[i] * slope;
  return z;
}
// 0 where z <= 0, elsewhere x: a ReLU's gradient, and of z itself the ReLU. NaN in z counts as positive.
template <int N, int L>
HALFGNN_INLINE Lanes<N, L> where_positive(Lanes<N, L> z, Lanes<N, L> x) {
  for (int i = 0; i < N; ++i) {
    const WordsOf<L> positive = ~bit_cast<WordsOf<L>>(z.v[i] <= splat<L>(0.f));
    x.v[i] = bit_cast<FloatsOf<L>>(bit_cast<WordsOf<L>>(x.v[i]) & positive);
  }
  return x;
}
// sum += z > 0 ? above : below
template <int N, int L>
HALFGNN_INLINE Lanes<N, L> add_by_sign(Lanes<N, L> z, FloatsOf<L> above, FloatsOf<L> below, Lanes<N, L> sum) {
  for (int i = 0; i < N; ++i) sum.v[i] += z.v[i] > splat<L>(0.f) ? above : below;
  return sum;
}
// x where it is finite, else 0
template <int N, int L>
HALFGNN_INLINE Lanes<N, L> finite_or_zero(Lanes<N, L> x) {
  for (int i = 0; i < N; ++i) x.v[i] = x.v[i] - x.v[i] == splat<L>(0.f) ? x.v[i] : splat<L>(0.f);
  return x;
}

#if defined(HALFGNN_F16C)
// out[k * stride] = sum_lanes(fold(sums[k])) for four of them. Halves are added in pairs, then turned so that one
// addition serves all four.
HALFGNN_INLINE __m256 add_halves(FloatsOf<8> x, FloatsOf<8> y) {
  const __m256 a = bit_cast<__m256>(x), b = bit_cast<__m256>(y);
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
// Two terms of each of four sums: of sums 0 and 2 in the lower half, of 1 and 3 in the upper one.
using FourSums = __m256;
template <int N>
HALFGNN_INLINE FourSums add_four(const Lanes<N, 8>* sums) {
  const __m256 x = add_halves(fold(sums[0]), fold(sums[1])), y = add_halves(fold(sums[2]), fold(sums[3]));
  return _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
}
template <int N>
HALFGNN_INLINE FourSums add_four(const Lanes<N, 16>* sums) {
  Lanes<1, 8> halved[4];
  for (int k = 0; k < 4; ++k) {
    const auto halves = bit_cast<Halves<FloatsOf<8>>>(fold(sums[k]));
    halved[k].v[0] = halves.lower + halves.upper;
  }
  return add_four(halved);
}
// out[k * stride + i] = sum k of sums[i]
HALFGNN_INLINE void store_sixteen_sums(const FourSums* sums, float* out, int64_t stride) {
  const auto add_pairs = [](__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
  };
  const __m256 x = add_pairs(sums[0], sums[1]), y = add_pairs(sums[2], sums[3]);
  const __m256 even = _mm256_shuffle_ps(x, y, 0x88), odd = _mm256_shuffle_ps(x, y, 0xdd);
  _mm_storeu_ps(out, _mm256_castps256_ps128(even));
  _mm_storeu_ps(out + stride, _mm256_extractf128_ps(even, 1));
  _mm_storeu_ps(out + 2 * stride, _mm256_castps256_ps128(odd));
  _mm_storeu_ps(out + 3 * stride, _mm256_extractf128_ps(odd, 1));
}
template <int N, int L>
HALFGNN_INLINE void store_four_sums(const Lanes<N, L>* sums, float* out, int64_t stride) {
  const __m256 pairs = add_four(sums);
  const FloatsOf<8> all = bit_cast<FloatsOf<8>>(_mm256_add_ps(pairs, _mm256_movehdup_ps(pairs)));
  out[0] = all[0];
  out[stride] = all[4];
  out[2 * stride] = all[2];
  out[3 * stride] = all[6];
}
#if defined(HALFGNN_AVX512)
HALFGNN_INLINE __m512 add_halves(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
template <int N>
HALFGNN_INLINE void store_four_sums(const Lanes<N, 16>* sums, float* out, int64_t stride) {
  __m512 folded[4];
  for (int k = 0; k < 4; ++k) folded[k] = bit_cast<__m512>(fold(sums[k]));
  const __m512 x = add_halves(folded[0], folded[1]), y = add_halves(folded[2], folded[3]);
  const __m512 quarters = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
  const __m512 pairs = _mm512_add_ps(quarters, _mm512_permute_ps(quarters, 0x4e));
  const FloatsOf<16> all = bit_cast<FloatsOf<16>>(_mm512_add_ps(pairs, _mm512_movehdup_ps(pairs)));
  for (int k = 0; k < 4; ++k) out[k * stride] = all[4 * k];
}
#endif
#else
struct FourSums {
  float v[4];
};
template <int N, int L>
HALFGNN_INLINE FourSums add_four(const Lanes<N, L>* sums) {
  FourSums r;
  for (int k = 0; k < 4; ++k) r.v[k] = sum_lanes(fold(sums[k]));
  return r;
}
HALFGNN_INLINE void store_sixteen_sums(const FourSums* sums, float* out, int64_t stride) {
  for (int k = 0; k < 4; ++k)
    for (int i = 0; i < 4; ++i) out[k * stride + i] = sums[i].v[k];
}
template <int N, int L>
HALFGNN_INLINE void store_four_sums(const Lanes<N, L>* sums, float* out, int64_t stride) {
  const FourSums all = add_four(sums);
  for (int k = 0; k < 4; ++k) out[k * stride] = all.v[k];
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
