// The planners' only question to CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "model.h"

namespace halfgnn::cuda {

inline Device current_device() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return {0};
  if (cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device) != cudaSuccess) return {0};
  return {bytes};
}

}  // namespace halfgnn::cuda
