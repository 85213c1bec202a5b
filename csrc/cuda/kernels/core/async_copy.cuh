// Copies from global to shared memory that go on while their lane does something else (cp.async, sm_80 and later).
// Until it has waited for its copy, what a lane finds in their place is undefined; other lanes of its warp need a
// __syncwarp() behind that. Before sm_80 they are loads and stores, which are done at once.
#pragma once

#include "arch.cuh"
#include "vector.cuh"

#if __has_include(<simt/copies.h>)  // of the simulator, which has no inline PTX
#include <simt/copies.h>
#endif

namespace halfgnn::cuda {

// Copies kBytes: 4 or 16, to which both addresses are aligned. Those of 16 bytes pass by the L1 cache.
template <int kBytes>
__device__ void copy_async(void* shared, const void* global) {
  static_assert(kBytes == 4 || kBytes == 16, "the sizes that are used");
  using Word = typename AccessWord<kBytes>::type;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(global) : "memory");
  }
#else
#ifdef HALFGNN_SIMT_COPIES
  if (HALFGNN_ARCH >= 800) return simt::copy_async<Word>(shared, global);
#endif
  *static_cast<Word*>(shared) = __ldg(static_cast<const Word*>(global));
#endif
}

// The copies that the lane has issued since the last call, perhaps none, are a group.
inline __device__ void end_group_of_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(HALFGNN_SIMT_COPIES)
  if (HALFGNN_ARCH >= 800) simt::end_group_of_copies();
#endif
}

// Waits for all groups of this lane but the last kGroups.
template <int kGroups>
__device__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#elif defined(HALFGNN_SIMT_COPIES)
  if (HALFGNN_ARCH >= 800) simt::wait_for_copies(kGroups);
#endif
}

}  // namespace halfgnn::cuda
