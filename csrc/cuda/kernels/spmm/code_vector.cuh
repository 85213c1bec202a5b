// Codes of 8 bits in registers, four in each: loads, sums of integers, and conversions to fp32.
#pragma once

#include "../core/bytes.cuh"
#include "../core/vector.cuh"

namespace halfgnn::cuda {

// kCount consecutive codes, 1, 4 or 16, as they lie in memory.
template <int kCount>
struct CodeVector {
  static constexpr int kWords = (kCount + 3) / 4;
  uint32_t words[kWords];

  // Cached, read-only for the whole kernel.
  static __device__ CodeVector load(const void* source) {
    if constexpr (kCount == 16) {
      const uint4 word = __ldg(static_cast<const uint4*>(source));
      return {{word.x, word.y, word.z, word.w}};
    } else if constexpr (kCount == 4) {
      return {{__ldg(static_cast<const unsigned int*>(source))}};
    } else {
      return {{__ldg(static_cast<const unsigned char*>(source))}};
    }
  }
  __device__ void keep_if(bool keep) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) clear_unless(keep, words[w]);
  }
};

// Sums of up to 257 codes from 0 to 255: the even ones of a register in the halves of one, the odd ones in another.
template <int kCount>
struct PackedSums {
  static constexpr int kWords = CodeVector<kCount>::kWords;
  static constexpr uint32_t kLowerBytes = 0x00ff00ff;
  uint32_t even[kWords], odd[kWords];

  __device__ void clear() {
#pragma unroll
    for (int w = 0; w < kWords; ++w) even[w] = odd[w] = 0;
  }
  // flip: xor of the codes, four at a time.
  __device__ void add(const CodeVector<kCount>& codes, uint32_t flip) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const uint32_t word = codes.words[w] ^ flip;
      if constexpr (kCount == 1) {
        even[w] += word & 0xff;
      } else {
        even[w] += word & kLowerBytes;
        odd[w] += bytes_of<0x4341>(word, 0);
      }
    }
  }
  // The sums of the lane whose number differs in the bit of `distance` join. The whole warp takes part.
  __device__ void add_lane(int distance) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      even[w] += __shfl_xor_sync(kFullMask, even[w], distance);
      if constexpr (kCount > 1) odd[w] += __shfl_xor_sync(kFullMask, odd[w], distance);
    }
  }
  // The sum of the code at place i.
  __device__ uint32_t of(int i) const {
    if constexpr (kCount == 1) {
      return even[0];
    } else {
      const uint32_t pair = i % 2 == 0 ? even[i / 4] : odd[i / 4];
      return i % 4 < 2 ? pair & 0xffff : pair >> 16;
    }
  }
};

// ---- Conversions: widen() makes values that are times unit() what codes stand for before scales.

struct DecodeInteger {
  static constexpr bool kHasZero = true;
  static __device__ float unit() { return 1.f; }
  // A byte in the last bits of 2^23 counts ones.
  template <int kCount>
  static __device__ void widen(const CodeVector<kCount>& codes, uint32_t flip, float bias, float (&values)[kCount]) {
    constexpr uint32_t kTwo23 = 0x4b000000;
    const float offset = 8388608.f + bias;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const uint32_t word = codes.words[i / 4] ^ flip;
      values[i] = __uint_as_float(bytes_of<0x7540>(word, kTwo23)) - offset;
      if constexpr (kCount > 1) {
        values[i + 1] = __uint_as_float(bytes_of<0x7541>(word, kTwo23)) - offset;
        values[i + 2] = __uint_as_float(bytes_of<0x7542>(word, kTwo23)) - offset;
        values[i + 3] = __uint_as_float(bytes_of<0x7543>(word, kTwo23)) - offset;
      }
    }
  }
};

// Two codes in the upper bytes of the halves of a register.
inline __device__ float2 widen_halves(uint32_t bits) { return __half22float2(bits_as<__half2>(bits)); }

struct DecodeE5M2 {  // the upper byte of a float16
  static constexpr bool kHasZero = false;
  static __device__ float unit() { return 1.f; }
  template <int kCount>
  static __device__ void widen(const CodeVector<kCount>& codes, uint32_t, float, float (&values)[kCount]) {
    if constexpr (kCount == 1) {
      values[0] = widen_halves(codes.words[0] << 8).x;
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const uint32_t word = codes.words[i / 4];
        const float2 lower = widen_halves(bytes_of<0x1404>(word, 0)), upper = widen_halves(bytes_of<0x3424>(word, 0));
        values[i] = lower.x;
        values[i + 1] = lower.y;
        values[i + 2] = upper.x;
        values[i + 3] = upper.y;
      }
    }
  }
};

struct DecodeE4M3 {
  static constexpr bool kHasZero = false;
  // As a float16 a code has one exponent bit more and is 2^8 times smaller. From sm_89 on there is an instruction.
  static __device__ float unit() { return HALFGNN_ARCH >= 890 ? 1.f : 256.f; }
  template <int kCount>
  static __device__ void widen(const CodeVector<kCount>& codes, uint32_t, float, float (&values)[kCount]) {
    if constexpr (kCount == 1) {
      values[0] = pair_of(codes.words[0]).x;
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        const float2 pair = pair_of(codes.words[i / 4] >> (8 * (i % 4)));
        values[i] = pair.x;
        values[i + 1] = pair.y;
      }
    }
  }

 private:
  // Of the two lower bytes.
  static __device__ float2 pair_of(uint32_t word) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint32_t bits;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(bits) : "h"(static_cast<unsigned short>(word)));
    return widen_halves(bits);
#else
    const uint32_t bytes = bytes_of<0x1404>(word, 0), magnitude = (bytes & 0x7f007f00u) >> 1;
    const uint32_t is_nan = (magnitude + 0x00800080u) & 0x40004000u;  // its only nan gets the exponent of nan
    const float2 pair = widen_halves((bytes & 0x80008000u) | magnitude | is_nan);
    const float unit = 256.f / DecodeE4M3::unit();
    return make_float2(unit * pair.x, unit * pair.y);
#endif
  }
};

}  // namespace halfgnn::cuda
