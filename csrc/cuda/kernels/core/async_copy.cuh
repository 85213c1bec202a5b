// Copies from global to shared memory that go on while their lane does something else (cp.async, sm_80 and later).
// Until it has waited for its copy, what a lane finds in their place is undefined; other lanes of its warp need a
// __syncwarp() behind that. Before sm_80 they are loads and stores, which are done at once.
#pragma once

#include <cuda_runtime.h>

#include "arch.cuh"

#if __has_include(<simt/copies.h>)  // of the simulator, which has no inline PTX
#include <simt/copies.h>
#define HALFGNN_SIMT_COPIES
#endif

namespace halfgnn::cuda {

// Copies 16 bytes, to which both addresses are aligned, past the L1 cache: if `condition`, under a predicate. Zeros
// unless there is a source.
inline __device__ void copy_async(void* shared, const void* global, bool condition = true, bool has_source = true) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p cp.async.cg.shared.global [%0], [%1], 16, %2;}" ::"r"(at),
               "l"(global), "r"(has_source ? 16 : 0), "r"(static_cast<uint32_t>(condition))
               : "memory");
#else
  if (!condition) return;
#ifdef HALFGNN_SIMT_COPIES
  if (HALFGNN_ARCH >= 800) return simt::copy_async(shared, has_source ? global : nullptr);
#endif
  *static_cast<uint4*>(shared) = has_source ? __ldg(static_cast<const uint4*>(global)) : uint4{};
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
