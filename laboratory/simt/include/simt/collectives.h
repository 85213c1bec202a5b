// Shuffles, votes and barriers, with CUDA's overloads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

#include "runtime.h"

namespace simt {

template <typename T>
T shuffle(Collective kind, unsigned mask, T value, uint32_t operand, int width, Site site) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles no such type");
  if (width < 1 || width > warpSize || (width & (width - 1)) != 0)
    fail("the width of a shuffle is no power of 2", site);
  Request request{kind, sizeof(T), static_cast<uint8_t>(width), mask, operand, 0, site};
  std::memcpy(&request.value, &value, sizeof(T));
  const uint64_t bits = collective(request);
  T result;
  std::memcpy(static_cast<void*>(&result), &bits, sizeof(T));
  return result;
}

inline uint64_t vote(Collective kind, unsigned mask, uint64_t value, Site site) {
  return collective({kind, 0, 0, mask, 0, value, site});
}

}  // namespace simt

#define SIMT_SHUFFLES(T)                                                                                               \
  inline T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize, simt::Site site = simt::here()) {       \
    return simt::shuffle(simt::Collective::kShuffle, mask, value, static_cast<uint32_t>(lane), width, site);           \
  }                                                                                                                    \
  inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = warpSize, simt::Site site = simt::here()) { \
    return simt::shuffle(simt::Collective::kShuffleUp, mask, value, by, width, site);                                  \
  }                                                                                                                    \
  inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = warpSize,                                 \
                            simt::Site site = simt::here()) {                                                          \
    return simt::shuffle(simt::Collective::kShuffleDown, mask, value, by, width, site);                                \
  }                                                                                                                    \
  inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = warpSize, simt::Site site = simt::here()) {   \
    return simt::shuffle(simt::Collective::kShuffleXor, mask, value, static_cast<uint32_t>(bits), width, site);        \
  }
SIMT_SHUFFLES(int)
SIMT_SHUFFLES(unsigned)
SIMT_SHUFFLES(long)
SIMT_SHUFFLES(unsigned long)
SIMT_SHUFFLES(long long)
SIMT_SHUFFLES(unsigned long long)
SIMT_SHUFFLES(float)
SIMT_SHUFFLES(double)
SIMT_SHUFFLES(__half)
SIMT_SHUFFLES(__half2)
SIMT_SHUFFLES(__nv_bfloat16)
SIMT_SHUFFLES(__nv_bfloat162)
#undef SIMT_SHUFFLES

inline unsigned __ballot_sync(unsigned mask, int predicate, simt::Site site = simt::here()) {
  return static_cast<unsigned>(simt::vote(simt::Collective::kBallot, mask, predicate != 0, site));
}
inline int __all_sync(unsigned mask, int predicate, simt::Site site = simt::here()) {
  return static_cast<int>(simt::vote(simt::Collective::kAll, mask, predicate != 0, site));
}
inline int __any_sync(unsigned mask, int predicate, simt::Site site = simt::here()) {
  return static_cast<int>(simt::vote(simt::Collective::kAny, mask, predicate != 0, site));
}
// From sm_80 on. Of signed integers, as bits.
inline int __reduce_max_sync(unsigned mask, int value, simt::Site site = simt::here()) {
  if (simt::arch() < 800) simt::fail("__reduce_max_sync() before sm_80", site);
  return static_cast<int>(simt::vote(simt::Collective::kReduceMax, mask, static_cast<uint32_t>(value), site));
}
inline void __syncwarp(unsigned mask = 0xffffffffu, simt::Site site = simt::here()) {
  simt::vote(simt::Collective::kSyncWarp, mask, 0, site);
}

inline void __syncthreads(simt::Site site = simt::here()) { simt::vote(simt::Collective::kSyncThreads, 0, 0, site); }
inline int __syncthreads_count(int predicate, simt::Site site = simt::here()) {
  return static_cast<int>(simt::vote(simt::Collective::kSyncThreadsCount, 0, predicate != 0, site));
}
inline int __syncthreads_or(int predicate, simt::Site site = simt::here()) {
  return __syncthreads_count(predicate, site) != 0;
}
inline int __syncthreads_and(int predicate, simt::Site site = simt::here()) {
  return __syncthreads_count(predicate == 0, site) == 0;
}
