// The simulator has one device, which is always current.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

namespace c10::cuda {

struct CUDAGuard {
  explicit CUDAGuard(c10::Device) {}
};

}  // namespace c10::cuda
