// The one place that launches kernels, and what every kernel and launcher uses.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "arch.cuh"
#include "launch.h"
#include "warp.h"

namespace halfgnn::cuda {

constexpr unsigned int kFullMask = 0xffffffffu;

// Blocks that a multiprocessor runs at the same time, at most.
constexpr bool kIsAmpereOfConsumers = kCompiledArch == 860 || kCompiledArch == 870;
constexpr bool kIsAdaOrBlackwellOfConsumers = kCompiledArch == 890 || kCompiledArch >= 1200;
constexpr int kMaxBlocksAtOnce = kCompiledArch == 750 || kIsAmpereOfConsumers ? 16
                                 : kIsAdaOrBlackwellOfConsumers               ? 24
                                                                              : 32;
// ptxas takes a few registers more for 8.6, 8.9 and 12.x. Kernels that would spill there have a block less.
constexpr int kBlockLess = kIsAmpereOfConsumers || kIsAdaOrBlackwellOfConsumers ? 1 : 0;
// Of blocks of so many warps: those that make `warps` of a multiprocessor's.
constexpr int blocks_for(int warps, int warps_of_block) {
  const int blocks = warps / warps_of_block;
  return blocks < kMaxBlocksAtOnce ? blocks : kMaxBlocksAtOnce;
}

// Runs `blocks` x `threads` of `kernel(args)` on `stream` without waiting for it. The status is
// that of this launch: unlike <<<>>> followed by cudaGetLastError, it does not take a launch error
// that somebody else left behind for its own. More blocks than a grid can have are refused; none
// at all launch nothing.
template <typename Args>
cudaError_t launch(void (*kernel)(Args), int64_t blocks, int threads, cudaStream_t stream, const Args& args) {
  if (blocks == 0) return cudaSuccess;
  if (blocks < 0 || blocks > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned int>(blocks));
  config.blockDim = dim3(static_cast<unsigned int>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace halfgnn::cuda
