// Device functions that concern one lane: memory accesses, bits, arithmetic.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "runtime.h"

// ---- memory. One access of at most 16 bytes, aligned to its size: UBSan sees a misaligned one.

#define SIMT_LOAD(name)                                                             \
  template <typename T>                                                             \
  inline T name(const T* source) {                                                  \
    static_assert(sizeof(T) <= 16 && alignof(T) == sizeof(T), "one access a load"); \
    return *source;                                                                 \
  }
#define SIMT_STORE(name)                                                             \
  template <typename T>                                                              \
  inline void name(T* target, T value) {                                             \
    static_assert(sizeof(T) <= 16 && alignof(T) == sizeof(T), "one access a store"); \
    *target = value;                                                                 \
  }
SIMT_LOAD(__ldg)
SIMT_LOAD(__ldca)
SIMT_LOAD(__ldcg)
SIMT_LOAD(__ldcs)
SIMT_LOAD(__ldlu)
SIMT_LOAD(__ldcv)
SIMT_STORE(__stwb)
SIMT_STORE(__stcg)
SIMT_STORE(__stcs)
SIMT_STORE(__stwt)
#undef SIMT_LOAD
#undef SIMT_STORE

// Lanes take turns on one thread, so any access is atomic and seen by all. What has to order accesses is looked for
// nevertheless (global_races.h).
inline void __threadfence() { simt::fence(); }
inline void __threadfence_block() {}

namespace simt {

template <typename T, typename Change>
T atomic(T* address, const Change& change) {
  begin_atomic(address, sizeof(T));
  const T old = *address;
  *address = static_cast<T>(change(old));
  end_atomic();
  return old;
}

}  // namespace simt

#define SIMT_ATOMIC(name, changed)                                  \
  template <typename T>                                             \
  inline T name(T* address, T value) {                              \
    return simt::atomic(address, [=](T old) { return (changed); }); \
  }
SIMT_ATOMIC(atomicExch, (static_cast<void>(old), value))
SIMT_ATOMIC(atomicAdd, old + value)
SIMT_ATOMIC(atomicOr, old | value)
SIMT_ATOMIC(atomicMax, old < value ? value : old)
SIMT_ATOMIC(atomicMin, value < old ? value : old)
#undef SIMT_ATOMIC
template <typename T>
T atomicCAS(T* address, T expected, T value) {
  return simt::atomic(address, [=](T old) { return old == expected ? value : old; });
}

// ---- control

[[noreturn]] inline void __trap(simt::Site site = simt::here()) { simt::fail("__trap()", site); }
inline unsigned __activemask() { return 1u << simt::current_lane(); }  // all that CUDA promises

// ---- bits

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((uint64_t{a} * b) >> 32); }

inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof(x));
  return bits;
}
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
inline int __float_as_int(float x) { return static_cast<int>(__float_as_uint(x)); }

// ---- arithmetic. The fast forms are exact here: their errors are for a GPU to show.

inline float __expf(float x) { return std::exp(x); }
inline float __exp2f(float x) { return std::exp2(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

#define SIMT_MIN_MAX(T)                            \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T max(T a, T b) { return a < b ? b : a; }
SIMT_MIN_MAX(int)
SIMT_MIN_MAX(unsigned)
SIMT_MIN_MAX(long)
SIMT_MIN_MAX(unsigned long)
SIMT_MIN_MAX(long long)
SIMT_MIN_MAX(unsigned long long)
#undef SIMT_MIN_MAX
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
