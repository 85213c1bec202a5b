// Vectors of kLanes fp32 values and the half conversions, in the compiler's portable vector extension (GCC, Clang;
// x86-64 and Arm).
//
// This file and those that include it are compiled once per instruction set, inside namespace HALFGNN_ISA, so that the
// linker never merges two copies. For the same reason they may not instantiate code of the C++ library.
// HALFGNN_F16C says that the processor converts fp16 itself. (The compiler's own __F16C__ does not follow a target
// pragma in every GCC.)
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(HALFGNN_F16C)
#include <immintrin.h>
#endif

#include "../../core/with_type.h"

#define HALFGNN_INLINE inline __attribute__((always_inline))
// For functions that several kernels use and that do the work of a row at least: compiled once per type, not into every
// kernel.
#define HALFGNN_NOINLINE __attribute__((noinline))
// For work on a batch of edges. The kernels around it are compiled for every type of weights and ids. With AVX2 one
// call per batch would cost a tenth of the instructions. Without AVX2 the call costs nothing that counts, and a batch
// is many times the code.
#if defined(HALFGNN_F16C)
#define HALFGNN_BATCH HALFGNN_INLINE
#else
#define HALFGNN_BATCH HALFGNN_NOINLINE
#endif

namespace halfgnn::HALFGNN_ISA {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// f(Type<T>{}) for the type T of elements of `type`.
template <class F>
HALFGNN_INLINE void with_type(DType type, F f) {
  halfgnn::with_type(ElementTypes<Half, BFloat16, double>{}, type, f);
}
// The same for types that have vectors: all but double.
template <class F>
HALFGNN_INLINE void with_vector_type(DType type, F f) {
  halfgnn::with_type(ElementTypes<Half, BFloat16>{}, type, f);
}
// f(Type<T>{}) or f(Type<float>{}): operands of type T may come with others of T or, beside halves, of float.
template <class T, class F>
inline void with_same_or_float(DType type, F f) {
  if (sizeof(T) == 2 && type != DType::kFloat) return f(Type<T>{});
  return f(Type<float>{});
}

// Values of a vector.
constexpr int kLanes = 8;

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef int32_t Integers __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halfwords __attribute__((vector_size(2 * kLanes)));

template <class To, class From>
HALFGNN_INLINE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast between equal sizes");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

template <class V>
HALFGNN_INLINE V load_unaligned(const void* p) {
  V v;
  memcpy(&v, p, sizeof(V));
  return v;
}

HALFGNN_INLINE Floats splat(float x) { return Floats{x, x, x, x, x, x, x, x}; }
HALFGNN_INLINE Words splat_bits(uint32_t x) { return Words{x, x, x, x, x, x, x, x}; }
HALFGNN_INLINE Words select(Words mask, Words a, Words b) { return (mask & a) | (~mask & b); }
HALFGNN_INLINE Floats select(Words mask, Floats a, Floats b) {
  return bit_cast<Floats>(select(mask, bit_cast<Words>(a), bit_cast<Words>(b)));
}

HALFGNN_INLINE float sum_lanes(Floats v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

// ---- bfloat16: the upper half of a float. Rounds to nearest even; NaN stays NaN.

// The result is in the upper 16 bits of each lane. The lower ones are undefined.
HALFGNN_INLINE Words round_to_bfloat16(Floats v) {
  const Words bits = bit_cast<Words>(v);
  const Words rounded = bits + splat_bits(0x7fff) + ((bits >> 16) & splat_bits(1));
  const Words is_nan = bit_cast<Words>((bits & splat_bits(0x7fffffff)) > splat_bits(0x7f800000));
  return select(is_nan, splat_bits(0x7fc00000), rounded);
}
HALFGNN_INLINE Floats load_vector(const BFloat16* p) {
  return bit_cast<Floats>(__builtin_convertvector(load_unaligned<Halfwords>(p), Words) << 16);
}
HALFGNN_INLINE void store_vector(Floats v, BFloat16* p) {
  const Halfwords bits = __builtin_convertvector(round_to_bfloat16(v) >> 16, Halfwords);
  memcpy(p, &bits, sizeof(bits));
}

// ---- float16

#if defined(HALFGNN_F16C)
HALFGNN_INLINE Floats load_vector(const Half* p) {
  return bit_cast<Floats>(_mm256_cvtph_ps(load_unaligned<__m128i>(p)));
}
HALFGNN_INLINE void store_vector(Floats v, Half* p) {
  const __m128i bits = _mm256_cvtps_ph(bit_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  memcpy(p, &bits, sizeof(bits));
}
#else
// The exponent is rebased by adding (127 - 15) << 23, for infinities and NaN twice. Subnormals are small integers times
// 2^-24.
HALFGNN_INLINE Floats load_vector(const Half* p) {
  const Words bits = __builtin_convertvector(load_unaligned<Halfwords>(p), Words);
  const Words magnitude = bits & splat_bits(0x7fff);
  const Words rebase = splat_bits(112u << 23);
  const Words normal = (magnitude << 13) + rebase;
  const Words special = bit_cast<Words>(magnitude >= splat_bits(0x7c00));
  const Words tiny = bit_cast<Words>(magnitude < splat_bits(0x0400));
  const Floats subnormal = __builtin_convertvector(bit_cast<Integers>(magnitude), Floats) * splat(0x1p-24f);
  const Words value = select(tiny, bit_cast<Words>(subnormal), normal + (special & rebase));
  return bit_cast<Floats>(value | ((bits & splat_bits(0x8000)) << 16));
}
// Rounds to nearest even by adding half a unit, or one less if the kept bit is even. Below 2^-14 the float adder rounds
// at 2^-24, the unit of subnormals.
HALFGNN_INLINE void store_vector(Floats v, Half* p) {
  const Words bits = bit_cast<Words>(v);
  const Words magnitude = bits & splat_bits(0x7fffffff);
  const Words normal =
      (magnitude - splat_bits(112u << 23) + splat_bits(0xfff) + ((magnitude >> 13) & splat_bits(1))) >> 13;
  const Words tiny = bit_cast<Words>(magnitude < splat_bits(0x38800000));
  const Words subnormal = bit_cast<Words>(bit_cast<Floats>(magnitude) + splat(0.5f)) - splat_bits(0x3f000000);
  const Words huge = bit_cast<Words>(magnitude >= splat_bits(0x47800000));
  const Words is_nan = bit_cast<Words>(magnitude > splat_bits(0x7f800000));
  Words half = select(tiny, subnormal, normal);
  half = select(huge, select(is_nan, splat_bits(0x7e00), splat_bits(0x7c00)), half);
  half |= (bits >> 16) & splat_bits(0x8000);
  const Halfwords narrow = __builtin_convertvector(half, Halfwords);
  memcpy(p, &narrow, sizeof(narrow));
}
#endif

HALFGNN_INLINE Floats load_vector(const float* p) { return load_unaligned<Floats>(p); }
HALFGNN_INLINE void store_vector(Floats v, float* p) { memcpy(p, &v, sizeof(v)); }

// ---- scalars

HALFGNN_INLINE float to_float(BFloat16 x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
HALFGNN_INLINE float to_float(float x) { return x; }
HALFGNN_INLINE double to_float(double x) { return x; }
#if defined(HALFGNN_F16C)
HALFGNN_INLINE float to_float(Half x) { return _cvtsh_ss(x.bits); }
#else
HALFGNN_INLINE float to_float(Half x) {  // like load_vector
  const uint32_t magnitude = x.bits & 0x7fffu, sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t rebase = magnitude < 0x7c00u ? 112u << 23 : 224u << 23;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  return bit_cast<float>(sign | (magnitude < 0x0400u ? bit_cast<uint32_t>(subnormal) : (magnitude << 13) + rebase));
}
#endif

}  // namespace halfgnn::HALFGNN_ISA
