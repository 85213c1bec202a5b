// Accesses of 2 to 16 bytes per lane, and the conversions between storage types and fp32.
#pragma once

#include <cuda_runtime.h>

#include <cstring>

#include "launch.cuh"
#include "types.cuh"

namespace halfgnn::cuda {

constexpr int kMaxAccessBytes = 16;

// The same address, but the compiler no longer knows how it was computed. Otherwise, if many addresses share a sum, it
// adds both parts to each of them, which costs two instructions per address.
inline __device__ const char* as_computed(const char* address) {
#ifdef __CUDA_ARCH__
  asm("" : "+l"(address));
#endif
  return address;
}

// x * y as one instruction: where the compiler widens `y` outside of a loop, it also adds up the upper words, which are
// 0.
inline __device__ uint64_t wide_product(uint32_t x, uint32_t y) {
#ifdef __CUDA_ARCH__
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(x), "r"(y));
  return product;
#else
  return uint64_t{x} * y;
#endif
}

// The register type of one access of kBytes, which must be aligned to kBytes.
template <int kBytes>
struct AccessWord;
template <>
struct AccessWord<16> {
  using type = uint4;
};
template <>
struct AccessWord<8> {
  using type = uint2;
};
template <>
struct AccessWord<4> {
  using type = unsigned int;
};
template <>
struct AccessWord<2> {
  using type = unsigned short;
};

// Conversions use intrinsics only: PyTorch compiles with the operators of the half types disabled.
template <typename T>
struct Convert;
template <>
struct Convert<__half> {
  using Pair = __half2;
  static __device__ float widen(__half x) { return __half2float(x); }
  static __device__ float2 widen(Pair x) { return __half22float2(x); }
  static __device__ __half round(float x) { return __float2half_rn(x); }
  static __device__ Pair round(float x, float y) { return __floats2half2_rn(x, y); }
};
template <>
struct Convert<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static __device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
  static __device__ float2 widen(Pair x) { return __bfloat1622float2(x); }
  static __device__ __nv_bfloat16 round(float x) { return __float2bfloat16_rn(x); }
  static __device__ Pair round(float x, float y) { return __floats2bfloat162_rn(x, y); }
};
template <>
struct Convert<float> {
  using Pair = float2;
  static __device__ float widen(float x) { return x; }
  static __device__ float2 widen(Pair x) { return x; }
  static __device__ float round(float x) { return x; }
  static __device__ Pair round(float x, float y) { return make_float2(x, y); }
};

template <typename To, typename From>
__device__ To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  std::memcpy(static_cast<void*>(&to), &from, sizeof(To));
  return to;
}

// keep: a bool, or a mask, which takes no predicate.
inline __device__ void clear_unless(bool keep, unsigned short& word) { word = keep ? word : 0; }
inline __device__ void clear_unless(bool keep, unsigned int& word) { word = keep ? word : 0; }
inline __device__ void clear_unless(uint32_t keep, unsigned short& word) { word &= keep; }
inline __device__ void clear_unless(uint32_t keep, unsigned int& word) { word &= keep; }
template <typename Keep>
__device__ void clear_unless(Keep keep, uint2& word) {
  clear_unless(keep, word.x);
  clear_unless(keep, word.y);
}
template <typename Keep>
__device__ void clear_unless(Keep keep, uint4& word) {
  clear_unless(keep, word.x);
  clear_unless(keep, word.y);
  clear_unless(keep, word.z);
  clear_unless(keep, word.w);
}

// Brings the sector at an address, which has to exist, to the L2 cache. Nothing waits for it.
inline __device__ void prefetch(const void* address) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#else
  static_cast<void>(*static_cast<const volatile unsigned char*>(address));
#endif
}

// Writes a result that is not read again, as one instruction under a predicate: after a branch that lanes take
// differently, the compiler would no longer know that a warp walks its rows together.
inline __device__ void store_streaming_if(bool condition, void* target, float value) {
#ifdef __CUDA_ARCH__
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.cs.f32 [%0], %1;}" ::"l"(target), "f"(value),
               "r"(static_cast<uint32_t>(condition)));
#else
  if (condition) __stcs(static_cast<float*>(target), value);
#endif
}
inline __device__ void store_streaming_if(bool condition, void* target, unsigned short word) {
#ifdef __CUDA_ARCH__
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.cs.u16 [%0], %1;}" ::"l"(target), "h"(word),
               "r"(static_cast<uint32_t>(condition)));
#else
  if (condition) __stcs(static_cast<unsigned short*>(target), word);
#endif
}
inline __device__ void store_streaming_if(bool condition, void* target, unsigned int word) {
  store_streaming_if(condition, target, __uint_as_float(word));
}
inline __device__ void store_streaming_if(bool condition, void* target, uint2 word) {
#ifdef __CUDA_ARCH__
  asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.cs.v2.u32 [%0], {%1, %2};}" ::"l"(target),
               "r"(word.x), "r"(word.y), "r"(static_cast<uint32_t>(condition)));
#else
  if (condition) __stcs(static_cast<uint2*>(target), word);
#endif
}
inline __device__ void store_streaming_if(bool condition, void* target, uint4 word) {
#ifdef __CUDA_ARCH__
  asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};}" ::"l"(target),
               "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w), "r"(static_cast<uint32_t>(condition)));
#else
  if (condition) __stcs(static_cast<uint4*>(target), word);
#endif
}

// kCount consecutive elements as they lie in memory, held in registers. They stay in storage form
// until they are used, so that several loads in flight cost few registers.
template <typename T, int kCount>
struct Fragment {
  static constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  using Word = typename AccessWord<kBytes>::type;
  struct Pairs {
    typename Convert<T>::Pair value[(kCount + 1) / 2];
  };

  Word word;

  // Data that other warps will want too: cached, read-only for the whole kernel.
  static __device__ Fragment load(const void* source) { return {__ldg(static_cast<const Word*>(source))}; }
  // Data that is read once: first to leave the caches.
  static __device__ Fragment load_streaming(const void* source) { return {__ldcs(static_cast<const Word*>(source))}; }

  // Becomes zero unless `keep`, a bool or a mask. Bits are cleared, so that an inf or nan leaves no trace.
  template <typename Keep>
  __device__ void keep_if(Keep keep) {
    clear_unless(keep, word);
  }

  __device__ void add_to(float (&sum)[kCount]) const {
    if constexpr (kCount == 1) {
      sum[0] += Convert<T>::widen(bits_as<T>(word));
    } else {
      const Pairs pairs = bits_as<Pairs>(word);
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        const float2 value = Convert<T>::widen(pairs.value[i]);
        sum[2 * i] += value.x;
        sum[2 * i + 1] += value.y;
      }
    }
  }

  // Of a single element.
  __device__ float value() const {
    static_assert(kCount == 1, "a single element");
    return Convert<T>::widen(bits_as<T>(word));
  }

  // sum += factor * this
  __device__ void multiply_add_to(float factor, float (&sum)[kCount]) const {
    float values[kCount];
    widen(values);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] = fmaf(factor, values[i], sum[i]);
  }

  __device__ void widen(float (&values)[kCount]) const {
    if constexpr (kCount == 1) {
      values[0] = Convert<T>::widen(bits_as<T>(word));
    } else {
      const Pairs pairs = bits_as<Pairs>(word);
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        const float2 value = Convert<T>::widen(pairs.value[i]);
        values[2 * i] = value.x;
        values[2 * i + 1] = value.y;
      }
    }
  }

  static __device__ Fragment round(const float* values) {
    if constexpr (kCount == 1) {
      return {bits_as<Word>(Convert<T>::round(values[0]))};
    } else {
      Pairs pairs;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        pairs.value[i] = Convert<T>::round(values[2 * i], values[2 * i + 1]);
      }
      return {bits_as<Word>(pairs)};
    }
  }

  // A result that this kernel does not read again: first to leave the caches.
  __device__ void store_streaming(void* target) const { __stcs(static_cast<Word*>(target), word); }
};

// Alignment that store_rounded<T, kCount> needs.
template <typename T, int kCount>
constexpr int kStoreAlignment =
    kCount * static_cast<int>(sizeof(T)) < kMaxAccessBytes ? kCount * static_cast<int>(sizeof(T)) : kMaxAccessBytes;

// Rounds each value once, to T, and writes them in as few accesses as possible.
template <typename T, int kCount>
__device__ void store_rounded(T* target, const float (&values)[kCount]) {
  constexpr int piece = kStoreAlignment<T, kCount> / static_cast<int>(sizeof(T));
#pragma unroll
  for (int i = 0; i < kCount; i += piece) {
    Fragment<T, piece>::round(values + i).store_streaming(target + i);
  }
}
// The same under a condition that may differ from lane to lane, without a branch.
template <typename T, int kCount>
__device__ void store_rounded_if(bool condition, char* target, const float (&values)[kCount]) {
  constexpr int piece = kStoreAlignment<T, kCount> / static_cast<int>(sizeof(T));
#pragma unroll
  for (int i = 0; i < kCount; i += piece) {
    store_streaming_if(condition, target + i * sizeof(T), Fragment<T, piece>::round(values + i).word);
  }
}

}  // namespace halfgnn::cuda
