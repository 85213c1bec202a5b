// Sizes that kernels, their launchers and the planners share. Without CUDA's headers.
#pragma once

#include <cstdint>

#include "../../../core/host_device.h"

namespace halfgnn::cuda {

constexpr int kLog2Warp = 5;
constexpr int kWarpSize = 1 << kLog2Warp;

constexpr HALFGNN_HOST_DEVICE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The smallest k with 2^k >= n.
constexpr HALFGNN_HOST_DEVICE int log2_ceil(int64_t n) {
  int k = 0;
  while ((int64_t{1} << k) < n) ++k;
  return k;
}

}  // namespace halfgnn::cuda
