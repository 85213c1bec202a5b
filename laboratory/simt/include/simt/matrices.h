// mma.m16n8k16 and movmatrix, in the words of csrc/cuda/kernels/core/mma.cuh, which includes this if it is there.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "runtime.h"

namespace simt {

// Beside the collectives of runtime.h: all lanes of a warp bring a call of the same function, which is made once.
constexpr auto kMatrices = static_cast<Collective>(static_cast<int>(Collective::kSyncThreadsCount) + 1);
using WarpFunction = void (*)(void* const (&lanes)[warpSize]);
struct WarpCall {
  WarpFunction function;
  void* lane;  // what this one brings
};
inline void with_whole_warp(WarpFunction function, void* lane, Site site) {
  if (arch() < 800) fail("there are no such tensor cores before sm_80", site);
  const WarpCall call{function, lane};
  collective({kMatrices, 0, 0, 0xffffffffu, 0, reinterpret_cast<uintptr_t>(&call), site});
}

// What a lane brings to a product, and where it gets its part of the sum.
struct MmaLane {
  const unsigned int* a;
  const unsigned int* b;
  float* sum;
};
void multiply_add_half(void* const (&lanes)[warpSize]);
void multiply_add_bfloat16(void* const (&lanes)[warpSize]);
// A lane's register is replaced.
void transpose_8x8_of(void* const (&lanes)[warpSize]);

// sum += a * b
template <typename T>
void multiply_add(const unsigned int (&a)[4], const unsigned int (&b)[2], float (&sum)[4], Site site = here()) {
  constexpr bool is_half = std::is_same_v<T, __half>;
  static_assert(is_half || std::is_same_v<T, __nv_bfloat16>, "mma.m16n8k16 has no such type");
  MmaLane lane{a, b, sum};
  with_whole_warp(is_half ? multiply_add_half : multiply_add_bfloat16, &lane, site);
}

inline unsigned int transpose_8x8(unsigned int row, Site site = here()) {
  with_whole_warp(transpose_8x8_of, &row, site);
  return row;
}

}  // namespace simt
