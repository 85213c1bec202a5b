// The one place that launches kernels, and what every kernel and launcher uses.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "launch.h"

namespace halfgnn::cuda {

constexpr int kLog2Warp = 5;
constexpr int kWarpSize = 1 << kLog2Warp;
constexpr unsigned int kFullMask = 0xffffffffu;

constexpr __host__ __device__ int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The smallest k with 2^k >= n.
constexpr __host__ __device__ int log2_ceil(int64_t n) {
  int k = 0;
  while ((int64_t{1} << k) < n) ++k;
  return k;
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
