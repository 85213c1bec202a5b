// Eight-lane fp32 vectors and the half conversions, in the compiler's portable vector extension (GCC, Clang; x86-64 and
// Arm). Included once for each instruction set, inside namespace HALFGNN_ISA, so that no two copies are ever merged by
// the linker. For the same reason nothing here may instantiate code of the C++ library.
// HALFGNN_F16C says that the processor converts fp16 itself (the compiler's own __F16C__ does not follow a target
// pragma in every GCC).
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <new>

#if defined(HALFGNN_F16C)
#include <immintrin.h>
#endif

#include "../../core/with_type.h"

#define HALFGNN_INLINE inline __attribute__((always_inline))
// Of what several kernels use, at least a row at a time: compiled once for each type, not into every kernel.
#define HALFGNN_NOINLINE __attribute__((noinline))
// Work on a batch of edges. The kernels around it are compiled for every type of weights and ids. With AVX2 a call a
// batch would cost a tenth of the instructions; without, nothing that counts, and a batch is many times the code.
#if defined(HALFGNN_F16C)
#define HALFGNN_BATCH HALFGNN_INLINE
#else
#define HALFGNN_BATCH HALFGNN_NOINLINE
#endif

namespace halfgnn {
namespace HALFGNN_ISA {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// f(Type<T>{}) for the type T of an element, and for those that have vectors: all but double.
template <class F>
HALFGNN_INLINE void with_type(DType type, F f) {
  halfgnn::with_type(ElementTypes<Half, BFloat16, double>{}, type, f);
}
template <class F>
HALFGNN_INLINE void with_vector_type(DType type, F f) {
  halfgnn::with_type(ElementTypes<Half, BFloat16>{}, type, f);
}

typedef float f32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));

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

HALFGNN_INLINE f32x8 splat(float x) { return f32x8{x, x, x, x, x, x, x, x}; }
HALFGNN_INLINE u32x8 splat_bits(uint32_t x) { return u32x8{x, x, x, x, x, x, x, x}; }
HALFGNN_INLINE u32x8 select(u32x8 mask, u32x8 a, u32x8 b) { return (mask & a) | (~mask & b); }
HALFGNN_INLINE f32x8 select(u32x8 mask, f32x8 a, f32x8 b) {
  return bit_cast<f32x8>(select(mask, bit_cast<u32x8>(a), bit_cast<u32x8>(b)));
}

HALFGNN_INLINE float sum_lanes(f32x8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

// ---- bfloat16: the upper half of a float; rounding to nearest even, NaN stays NaN

HALFGNN_INLINE u32x8 round_to_bfloat16(f32x8 v) {  // result in the upper 16 bits of each lane, the lower ones undefined
  const u32x8 bits = bit_cast<u32x8>(v);
  const u32x8 rounded = bits + splat_bits(0x7fff) + ((bits >> 16) & splat_bits(1));
  const u32x8 is_nan = bit_cast<u32x8>((bits & splat_bits(0x7fffffff)) > splat_bits(0x7f800000));
  return select(is_nan, splat_bits(0x7fc00000), rounded);
}
HALFGNN_INLINE f32x8 load8(const BFloat16* p) {
  return bit_cast<f32x8>(__builtin_convertvector(load_unaligned<u16x8>(p), u32x8) << 16);
}
HALFGNN_INLINE void store8(f32x8 v, BFloat16* p) {
  const u16x8 bits = __builtin_convertvector(round_to_bfloat16(v) >> 16, u16x8);
  memcpy(p, &bits, sizeof(bits));
}

// ---- float16

#if defined(HALFGNN_F16C)
HALFGNN_INLINE f32x8 load8(const Half* p) { return bit_cast<f32x8>(_mm256_cvtph_ps(load_unaligned<__m128i>(p))); }
HALFGNN_INLINE void store8(f32x8 v, Half* p) {
  const __m128i bits = _mm256_cvtps_ph(bit_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  memcpy(p, &bits, sizeof(bits));
}
#else
// The exponent is rebased by adding (127 - 15) << 23; infinities and NaN once more; subnormals are small integers times
// 2^-24.
HALFGNN_INLINE f32x8 load8(const Half* p) {
  const u32x8 bits = __builtin_convertvector(load_unaligned<u16x8>(p), u32x8);
  const u32x8 magnitude = bits & splat_bits(0x7fff);
  const u32x8 rebase = splat_bits(112u << 23);
  const u32x8 normal = (magnitude << 13) + rebase;
  const u32x8 special = bit_cast<u32x8>(magnitude >= splat_bits(0x7c00));
  const u32x8 tiny = bit_cast<u32x8>(magnitude < splat_bits(0x0400));
  const f32x8 subnormal = __builtin_convertvector(bit_cast<i32x8>(magnitude), f32x8) * splat(0x1p-24f);
  const u32x8 value = select(tiny, bit_cast<u32x8>(subnormal), normal + (special & rebase));
  return bit_cast<f32x8>(value | ((bits & splat_bits(0x8000)) << 16));
}
// Round to nearest even by adding half a unit (less one where the kept bit is even); below 2^-14 by letting the float
// adder round at 2^-24, the unit of subnormals.
HALFGNN_INLINE void store8(f32x8 v, Half* p) {
  const u32x8 bits = bit_cast<u32x8>(v);
  const u32x8 magnitude = bits & splat_bits(0x7fffffff);
  const u32x8 normal =
      (magnitude - splat_bits(112u << 23) + splat_bits(0xfff) + ((magnitude >> 13) & splat_bits(1))) >> 13;
  const u32x8 tiny = bit_cast<u32x8>(magnitude < splat_bits(0x38800000));
  const u32x8 subnormal = bit_cast<u32x8>(bit_cast<f32x8>(magnitude) + splat(0.5f)) - splat_bits(0x3f000000);
  const u32x8 huge = bit_cast<u32x8>(magnitude >= splat_bits(0x47800000));
  const u32x8 is_nan = bit_cast<u32x8>(magnitude > splat_bits(0x7f800000));
  u32x8 half = select(tiny, subnormal, normal);
  half = select(huge, select(is_nan, splat_bits(0x7e00), splat_bits(0x7c00)), half);
  half |= (bits >> 16) & splat_bits(0x8000);
  const u16x8 narrow = __builtin_convertvector(half, u16x8);
  memcpy(p, &narrow, sizeof(narrow));
}
#endif

HALFGNN_INLINE f32x8 load8(const float* p) { return load_unaligned<f32x8>(p); }
HALFGNN_INLINE void store8(f32x8 v, float* p) { memcpy(p, &v, sizeof(v)); }

// ---- scalars

HALFGNN_INLINE float to_float(BFloat16 x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
HALFGNN_INLINE float to_float(float x) { return x; }
HALFGNN_INLINE double to_float(double x) { return x; }
#if defined(HALFGNN_F16C)
HALFGNN_INLINE float to_float(Half x) { return _cvtsh_ss(x.bits); }
#else
HALFGNN_INLINE float to_float(Half x) {  // as load8 does it
  const uint32_t magnitude = x.bits & 0x7fffu, sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t rebase = magnitude < 0x7c00u ? 112u << 23 : 224u << 23;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  return bit_cast<float>(sign | (magnitude < 0x0400u ? bit_cast<uint32_t>(subnormal) : (magnitude << 13) + rebase));
}
#endif

// ---- blocks of 8 or 16 consecutive elements

template <int N>
struct Lanes {
  f32x8 v[N];
};
template <int N>
HALFGNN_INLINE Lanes<N> multiply_add(Lanes<N> x, Lanes<N> y, Lanes<N> sum) {
  for (int i = 0; i < N; ++i) sum.v[i] += x.v[i] * y.v[i];
  return sum;
}
template <int N>
HALFGNN_INLINE Lanes<N> multiply_add(f32x8 x, Lanes<N> y, Lanes<N> sum) {
  for (int i = 0; i < N; ++i) sum.v[i] += x * y.v[i];
  return sum;
}
template <int N>
HALFGNN_INLINE Lanes<N> add(Lanes<N> x, Lanes<N> y) {
  for (int i = 0; i < N; ++i) x.v[i] += y.v[i];
  return x;
}
template <int N>
HALFGNN_INLINE Lanes<N> scale(f32x8 a, Lanes<N> x) {
  for (int i = 0; i < N; ++i) x.v[i] *= a;
  return x;
}
template <int N>
HALFGNN_INLINE f32x8 fold(Lanes<N> x) {
  for (int i = 1; i < N; ++i) x.v[0] += x.v[i];
  return x.v[0];
}
template <int N>
HALFGNN_INLINE Lanes<N> load_lanes(const float* p) {  // workspace: lanes in the order they have in registers
  Lanes<N> r;
  for (int i = 0; i < N; ++i) r.v[i] = load8(p + 8 * i);
  return r;
}
template <int N>
HALFGNN_INLINE void store_lanes(Lanes<N> x, float* p) {
  for (int i = 0; i < N; ++i) store8(x.v[i], p + 8 * i);
}

// Block<T, W>: W consecutive elements of T as fp32 lanes. Lane order is the type's own business as long as load, store
// and the fp32 versions agree: 16 bfloat16 split into even and odd elements costs a shift and a mask, and no shuffle.
template <class T, int W>
struct Block {
  static constexpr int kWidth = W;
  using V = Lanes<W / 8>;
  static HALFGNN_INLINE V load(const T* p) {
    V r;
    for (int i = 0; i < W / 8; ++i) r.v[i] = load8(p + 8 * i);
    return r;
  }
  template <class S>
  static HALFGNN_INLINE void store(V x, S* p) {
    for (int i = 0; i < W / 8; ++i) store8(x.v[i], p + 8 * i);
  }
  static HALFGNN_INLINE V load_floats(const float* p) { return load_lanes<W / 8>(p); }
};

template <>
struct Block<BFloat16, 16> {
  static constexpr int kWidth = 16;
  using V = Lanes<2>;
  static HALFGNN_INLINE V load(const BFloat16* p) {
    const u32x8 bits = load_unaligned<u32x8>(p);
    return {{bit_cast<f32x8>(bits << 16), bit_cast<f32x8>(bits & splat_bits(0xffff0000))}};
  }
  static HALFGNN_INLINE void store(V x, BFloat16* p) {
    const u32x8 bits = (round_to_bfloat16(x.v[0]) >> 16) | (round_to_bfloat16(x.v[1]) & splat_bits(0xffff0000));
    memcpy(p, &bits, sizeof(bits));
  }
  static HALFGNN_INLINE void store(V x, float* p) {
    for (int i = 0; i < 8; ++i) {
      p[2 * i] = x.v[0][i];
      p[2 * i + 1] = x.v[1][i];
    }
  }
  static HALFGNN_INLINE V load_floats(const float* p) {
    V r;
    for (int i = 0; i < 8; ++i) {
      r.v[0][i] = p[2 * i];
      r.v[1][i] = p[2 * i + 1];
    }
    return r;
  }
};

// ---- whole rows of any length

template <class T, class Acc>
HALFGNN_INLINE void decode_row(const T* p, int64_t n, Acc* out) {
  int64_t i = 0;
  if constexpr (sizeof(Acc) == 4 && sizeof(T) < 8) {
    for (; i + 8 <= n; i += 8) store8(load8(p + i), out + i);
  }
  for (; i < n; ++i) out[i] = static_cast<Acc>(to_float(p[i]));
}
template <class T>
HALFGNN_INLINE void encode_row(const float* p, int64_t n, T* out) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(load8(p + i), out + i);
  if (i == n) return;
  float rest[8] = {};
  T rounded[8];
  for (int64_t j = i; j < n; ++j) rest[j - i] = p[j];
  store8(load8(rest), rounded);
  for (int64_t j = i; j < n; ++j) out[j] = rounded[j - i];
}
HALFGNN_INLINE void encode_row(const double* p, int64_t n, double* out) {
  memcpy(out, p, static_cast<size_t>(n) * sizeof(double));
}

// Row `row` of an operand as Acc values.
template <class Acc>
inline void decode(const Operand& operand, int64_t row, Acc* out) {
  const int64_t first = row * operand.len;
  with_type(operand.type, [&](auto t) {
    decode_row(static_cast<const TypeOf<decltype(t)>*>(operand.data) + first, operand.len, out);
  });
}
// Stores n values, rounded once, as row `row` of a matrix of `type`.
inline void encode(const float* values, int64_t n, DType type, void* out, int64_t row) {
  with_vector_type(type, [&](auto t) { encode_row(values, n, static_cast<TypeOf<decltype(t)>*>(out) + row * n); });
}
// As a call: for a kernel that is compiled many times.
HALFGNN_NOINLINE inline void encode_apart(const float* values, int64_t n, DType type, void* out, int64_t row) {
  encode(values, n, type, out, row);
}
inline void encode(const double* values, int64_t n, DType, void* out, int64_t row) {
  encode_row(values, n, static_cast<double*>(out) + row * n);
}

// Uninitialised workspace of one call.
template <class E>
class Scratch {
 public:
  explicit Scratch(int64_t n) : data_(static_cast<E*>(malloc(static_cast<size_t>(n > 0 ? n : 1) * sizeof(E)))) {
    if (!data_) throw std::bad_alloc();
  }
  ~Scratch() { free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  operator E*() const { return data_; }
  E* get() const { return data_; }

 private:
  E* data_;
};

}  // namespace HALFGNN_ISA
}  // namespace halfgnn
