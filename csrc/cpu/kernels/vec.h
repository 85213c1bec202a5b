// Vectors of kLanes fp32 values and the half conversions, in the compiler's portable vector extension (GCC, Clang;
// x86-64 and Arm).
//
// This file and those that include it are compiled once per instruction set, inside namespace HALFGNN_ISA, so that the
// linker never merges two copies. For the same reason they may not instantiate code of the C++ library.
// build_sources.py defines HALFGNN_LANES, and what the instruction set has beside the vectors of the compiler:
// HALFGNN_F16C (fp16 is converted, and vectors are AVX2's), HALFGNN_AVX512. (The compiler's own __F16C__ does not
// follow a target pragma in every GCC.)
#pragma once

#include <stdint.h>
#include <string.h>

#include <type_traits>

#if defined(HALFGNN_F16C)
// AVX-512's functions take a value that is not initialised where their instructions ignore it, and GCC 12 warns of it.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__aarch64__)
#include <arm_neon.h>
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
// Of Code::kFloat8E4M3 and kFloat8E5M2. Codes that are integers are int8_t and uint8_t.
struct Float8E4M3 {
  uint8_t bits;
};
struct Float8E5M2 {
  uint8_t bits;
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
// f(Type<C>{}) for the type C of codes.
template <class F>
HALFGNN_INLINE void with_code_type(Code code, F f) {
  switch (code) {
    case Code::kUInt8: return f(Type<uint8_t>{});
    case Code::kInt8: return f(Type<int8_t>{});
    case Code::kFloat8E4M3: return f(Type<Float8E4M3>{});
    default: return f(Type<Float8E5M2>{});
  }
}
// f(Type<T>{}) or f(Type<float>{}): operands of type T may come with others of T or, beside halves, of float.
template <class T, class F>
inline void with_same_or_float(DType type, F f) {
  if (sizeof(T) == 2 && type != DType::kFloat) return f(Type<T>{});
  return f(Type<float>{});
}
// f(Type<E>{}) for the type E of an operand beside one of T: T, fp32 beside halves, or either half type beside fp32.
template <class T, class F>
HALFGNN_INLINE void with_partner_type(DType type, F f) {
  if (type == DType::kFloat) return f(Type<float>{});
  if constexpr (sizeof(T) == 4) {
    with_vector_type(type, f);
  } else {
    return f(Type<T>{});
  }
}

// Values of a vector. An instruction set without such registers computes a vector in parts.
constexpr int kLanes = HALFGNN_LANES;

// Vectors of L values. Kernels use those of kLanes, and shorter ones for rows that have fewer values.
template <int L>
struct VectorsOf {
  typedef float Floats __attribute__((vector_size(4 * L)));
  typedef uint32_t Words __attribute__((vector_size(4 * L)));
  typedef int32_t Integers __attribute__((vector_size(4 * L)));
  typedef uint16_t Halfwords __attribute__((vector_size(2 * L)));
  typedef int16_t SignedHalfwords __attribute__((vector_size(2 * L)));
  typedef uint8_t Bytes __attribute__((vector_size(L)));
};
template <int L>
using FloatsOf = typename VectorsOf<L>::Floats;
template <int L>
using WordsOf = typename VectorsOf<L>::Words;
template <int L>
using HalfwordsOf = typename VectorsOf<L>::Halfwords;
using Floats = FloatsOf<kLanes>;
using Words = WordsOf<kLanes>;
using Integers = typename VectorsOf<kLanes>::Integers;
using Halfwords = HalfwordsOf<kLanes>;
// How many values a vector has, of 32 bits each; vectors of other values that are as many.
template <class V>
constexpr int kLanesOf = sizeof(V) / 4;
template <class V>
using WordsLike = WordsOf<kLanesOf<V>>;
template <class V>
using HalfwordsLike = HalfwordsOf<kLanesOf<V>>;

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

// A vector that is used twice and loaded once. GCC makes a load of each use: one instruction less, but on Zen 4 a load
// of 64 bytes takes as long as an addition of 16 floats, and sums of bfloat16 rows 1.2 times as long.
template <class V>
HALFGNN_INLINE V load_once(const void* p) {
  V v = load_unaligned<V>(p);
#if defined(HALFGNN_AVX512)
  constexpr size_t kRegisterBytes = 64;
#elif defined(HALFGNN_F16C)
  constexpr size_t kRegisterBytes = 32;
#else
  constexpr size_t kRegisterBytes = 0;  // vectors are longer than registers
#endif
  if constexpr (sizeof(V) <= kRegisterBytes) asm("" : "+v"(v));
  return v;
}

// x in every lane. x - 0 is x, -0 included.
template <int L = kLanes>
HALFGNN_INLINE FloatsOf<L> splat(float x) {
  return x - FloatsOf<L>{};
}
template <int L = kLanes>
HALFGNN_INLINE WordsOf<L> splat_bits(uint32_t x) {
  return x + WordsOf<L>{};
}
template <class V>
HALFGNN_INLINE V select(WordsLike<V> mask, V a, V b) {
  using W = WordsLike<V>;
  return bit_cast<V>((mask & bit_cast<W>(a)) | (~mask & bit_cast<W>(b)));
}

// is(a, b): a mask for each lane. GCC takes comparisons of vectors that are longer than registers apart into elements,
// so here they are taken apart into registers.
template <class V, class Is>
HALFGNN_INLINE auto compare(V a, V b, Is is) {
#if defined(HALFGNN_F16C)
  return is(a, b);
#else
  typedef std::remove_reference_t<decltype(a[0])> Part __attribute__((vector_size(16)));
  struct Parts {
    Part v[sizeof(V) / 16];
  };
  struct Masks {
    decltype(Part{} > Part{}) v[sizeof(V) / 16];
  };
  const auto x = bit_cast<Parts>(a), y = bit_cast<Parts>(b);
  Masks masks;
  for (size_t i = 0; i < sizeof(V) / 16; ++i) masks.v[i] = is(x.v[i], y.v[i]);
  return bit_cast<typename VectorsOf<kLanesOf<V>>::Integers>(masks);
#endif
}
template <class V>
HALFGNN_INLINE auto greater(V a, V b) {
  return compare(a, b, [](auto x, auto y) { return x > y; });
}
template <class V>
HALFGNN_INLINE auto equal(V a, V b) {
  return compare(a, b, [](auto x, auto y) { return x == y; });
}
// a where `mask` has all bits, b elsewhere. Without an instruction for it, GCC takes vectors apart at ?:.
template <class V, class Mask>
HALFGNN_INLINE V choose_lanes(Mask mask, V a, V b) {
#if defined(HALFGNN_F16C)
  return mask ? a : b;
#else
  return select(bit_cast<WordsLike<V>>(mask), a, b);
#endif
}

// a where it is larger (smaller) than b, elsewhere b, also beside NaN. For AVX-512 GCC makes masks of comparisons, on
// which loads then wait, and its function for the instruction keeps arrays of results out of registers.
template <class V>
HALFGNN_INLINE V larger(V a, V b) {
#if defined(HALFGNN_AVX512)
  if constexpr (kLanesOf<V> == 16) {
    asm("vmaxps %1, %2, %0" : "=v"(b) : "v"(b), "v"(a));
    return b;
  }
#endif
  return choose_lanes(greater(a, b), a, b);
}
template <class V>
HALFGNN_INLINE V smaller(V a, V b) {
#if defined(HALFGNN_AVX512)
  if constexpr (kLanesOf<V> == 16) {
    asm("vminps %1, %2, %0" : "=v"(b) : "v"(b), "v"(a));
    return b;
  }
#endif
  return choose_lanes(greater(b, a), a, b);
}

// A vector as two, where it is longer than what an instruction takes.
template <class V>
struct Halves {
  V lower, upper;
};

HALFGNN_INLINE float sum_lanes(FloatsOf<8> v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
HALFGNN_INLINE float sum_lanes(FloatsOf<16> v) {
  const auto halves = bit_cast<Halves<FloatsOf<8>>>(v);
  return sum_lanes(halves.lower + halves.upper);
}

// ---- bfloat16: the upper half of a float. Rounds to nearest even; NaN stays NaN. (AVX-512's own conversion takes
// subnormal numbers for 0.)

// The result is in the upper 16 bits of each lane. The lower ones are undefined.
template <class V>
HALFGNN_INLINE WordsLike<V> round_to_bfloat16(V v) {
  using W = WordsLike<V>;
  constexpr int L = kLanesOf<V>;
  const W bits = bit_cast<W>(v);
  const W rounded = bits + splat_bits<L>(0x7fff) + ((bits >> 16) & splat_bits<L>(1));
  return choose_lanes(equal(v, v), rounded, splat_bits<L>(0x7fc00000));
}
template <int L = kLanes>
HALFGNN_INLINE FloatsOf<L> load_vector(const BFloat16* p) {
  return bit_cast<FloatsOf<L>>(__builtin_convertvector(load_unaligned<HalfwordsOf<L>>(p), WordsOf<L>) << 16);
}
template <class V>
HALFGNN_INLINE void store_vector(V v, BFloat16* p) {
  const auto bits = __builtin_convertvector(round_to_bfloat16(v) >> 16, HalfwordsLike<V>);
  memcpy(p, &bits, sizeof(bits));
}

// ---- float16

#if defined(HALFGNN_F16C)
HALFGNN_INLINE FloatsOf<8> from_float16(HalfwordsOf<8> bits) {
  return bit_cast<FloatsOf<8>>(_mm256_cvtph_ps(bit_cast<__m128i>(bits)));
}
HALFGNN_INLINE HalfwordsOf<8> to_float16(FloatsOf<8> v) {
  return bit_cast<HalfwordsOf<8>>(_mm256_cvtps_ph(bit_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif defined(__aarch64__)
HALFGNN_INLINE FloatsOf<8> from_float16(HalfwordsOf<8> bits) {
  const auto halves = bit_cast<Halves<float16x4_t>>(bits);
  return bit_cast<FloatsOf<8>>(Halves<float32x4_t>{vcvt_f32_f16(halves.lower), vcvt_f32_f16(halves.upper)});
}
HALFGNN_INLINE HalfwordsOf<8> to_float16(FloatsOf<8> v) {
  const auto halves = bit_cast<Halves<float32x4_t>>(v);
  return bit_cast<HalfwordsOf<8>>(Halves<float16x4_t>{vcvt_f16_f32(halves.lower), vcvt_f16_f32(halves.upper)});
}
#else
// The exponent is rebased by adding (127 - 15) << 23, for infinities and NaN twice. Subnormals are small integers times
// 2^-24.
HALFGNN_INLINE Floats from_float16(Halfwords half) {
  const Words bits = __builtin_convertvector(half, Words);
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
HALFGNN_INLINE Halfwords to_float16(Floats v) {
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
  return __builtin_convertvector(half, Halfwords);
}
#endif
#if defined(HALFGNN_AVX512)
HALFGNN_INLINE FloatsOf<16> from_float16(HalfwordsOf<16> bits) {
  return bit_cast<FloatsOf<16>>(_mm512_cvtph_ps(bit_cast<__m256i>(bits)));
}
HALFGNN_INLINE HalfwordsOf<16> to_float16(FloatsOf<16> v) {
  return bit_cast<HalfwordsOf<16>>(_mm512_cvtps_ph(bit_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#else
HALFGNN_INLINE FloatsOf<16> from_float16(HalfwordsOf<16> bits) {
  const auto halves = bit_cast<Halves<HalfwordsOf<8>>>(bits);
  return bit_cast<FloatsOf<16>>(Halves<FloatsOf<8>>{from_float16(halves.lower), from_float16(halves.upper)});
}
HALFGNN_INLINE HalfwordsOf<16> to_float16(FloatsOf<16> v) {
  const auto halves = bit_cast<Halves<FloatsOf<8>>>(v);
  return bit_cast<HalfwordsOf<16>>(Halves<HalfwordsOf<8>>{to_float16(halves.lower), to_float16(halves.upper)});
}
#endif
template <int L = kLanes>
HALFGNN_INLINE FloatsOf<L> load_vector(const Half* p) {
  return from_float16(load_unaligned<HalfwordsOf<L>>(p));
}
template <class V>
HALFGNN_INLINE void store_vector(V v, Half* p) {
  const auto bits = to_float16(v);
  memcpy(p, &bits, sizeof(bits));
}

template <int L = kLanes>
HALFGNN_INLINE FloatsOf<L> load_vector(const float* p) {
  return load_unaligned<FloatsOf<L>>(p);
}
template <class V>
HALFGNN_INLINE void store_vector(V v, float* p) {
  memcpy(p, &v, sizeof(v));
}

// ---- codes of 8 bits. GCC takes vectors of bytes apart where it converts them to words at once, or to anything if
// they are shorter than registers.

#if defined(HALFGNN_F16C)
template <int L>
HALFGNN_INLINE HalfwordsOf<L> load_bytes(const void* p) {
  if constexpr (L == 16) {
    return bit_cast<HalfwordsOf<L>>(_mm256_cvtepu8_epi16(load_unaligned<__m128i>(p)));
  } else {
    return bit_cast<HalfwordsOf<L>>(_mm_cvtepu8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
  }
}
HALFGNN_INLINE FloatsOf<8> floats_of(__m256i integers) { return bit_cast<FloatsOf<8>>(_mm256_cvtepi32_ps(integers)); }
template <int L = kLanes, class E, class = std::enable_if_t<std::is_integral_v<E> && sizeof(E) == 1>>
HALFGNN_INLINE FloatsOf<L> load_vector(const E* p) {
  if constexpr (L == 16) {
#if defined(HALFGNN_AVX512)
    const __m128i bytes = load_unaligned<__m128i>(p);
    const __m512i integers = std::is_signed_v<E> ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
    return bit_cast<FloatsOf<16>>(_mm512_cvtepi32_ps(integers));
#else
    return bit_cast<FloatsOf<16>>(Halves<FloatsOf<8>>{load_vector<8>(p), load_vector<8>(p + 8)});
#endif
  } else {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return floats_of(std::is_signed_v<E> ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
  }
}
#else
template <int L>
HALFGNN_INLINE HalfwordsOf<L> load_bytes(const void* p) {
  return __builtin_convertvector(load_unaligned<typename VectorsOf<L>::Bytes>(p), HalfwordsOf<L>);
}
template <int L = kLanes, class E, class = std::enable_if_t<std::is_integral_v<E> && sizeof(E) == 1>>
HALFGNN_INLINE FloatsOf<L> load_vector(const E* p) {
  const WordsOf<L> bytes = __builtin_convertvector(load_bytes<L>(p), WordsOf<L>);
  using I = typename VectorsOf<L>::Integers;
  const I integers = std::is_signed_v<E> ? bit_cast<I>(bytes << 24) >> 24 : bit_cast<I>(bytes);
  return __builtin_convertvector(integers, FloatsOf<L>);
}
#endif
// The upper byte of a float16.
template <int L = kLanes>
HALFGNN_INLINE FloatsOf<L> load_vector(const Float8E5M2* p) {
  return from_float16(load_bytes<L>(p) << 8);
}
// As a float16 it has one exponent bit more and is 2^8 times smaller. Its only NaN has all bits set but the sign.
template <int L = kLanes>
HALFGNN_INLINE FloatsOf<L> load_vector(const Float8E4M3* p) {
  using H = HalfwordsOf<L>;
  typedef typename VectorsOf<L>::SignedHalfwords Signed;
  const H bits = bit_cast<H>(bit_cast<Signed>(load_bytes<L>(p) << 8) >> 1) & 0xbfff;
  const H is_nan = bit_cast<H>((bits & 0x7fff) == 0x3f80);
  return from_float16(bits | is_nan) * splat<L>(0x1p8f);
}

// ---- scalars

HALFGNN_INLINE float to_float(BFloat16 x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
HALFGNN_INLINE float to_float(float x) { return x; }
HALFGNN_INLINE double to_float(double x) { return x; }
#if defined(HALFGNN_F16C)
HALFGNN_INLINE float to_float(Half x) { return _cvtsh_ss(x.bits); }
#elif defined(__aarch64__)
HALFGNN_INLINE float to_float(Half x) { return static_cast<float>(bit_cast<__fp16>(x.bits)); }
#else
HALFGNN_INLINE float to_float(Half x) {  // like from_float16
  const uint32_t magnitude = x.bits & 0x7fffu, sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t rebase = magnitude < 0x7c00u ? 112u << 23 : 224u << 23;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  return bit_cast<float>(sign | (magnitude < 0x0400u ? bit_cast<uint32_t>(subnormal) : (magnitude << 13) + rebase));
}
#endif

}  // namespace halfgnn::HALFGNN_ISA
