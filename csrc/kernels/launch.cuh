// The one place that launches kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

namespace halfgnn::cuda {

constexpr int kWarpSize = 32;
constexpr unsigned int kFullMask = 0xffffffffu;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Runs `blocks` x `threads` of `kernel(args)` on `stream` without waiting for it. The status is
// that of this launch: unlike <<<>>> followed by cudaGetLastError, it does not take a launch error
// that somebody else left behind for its own. More blocks than a grid can have are refused.
template <typename Args>
cudaError_t launch(void (*kernel)(Args), int64_t blocks, int threads, cudaStream_t stream, const Args& args) {
  if (blocks > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned int>(blocks));
  config.blockDim = dim3(static_cast<unsigned int>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace halfgnn::cuda
