// What planners know of the device. On hosts only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace halfgnn::cuda {

// Bytes of the current device's L2 cache; 0 where the driver does not tell.
inline int64_t l2_cache_bytes() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device) != cudaSuccess) return 0;
  return bytes;
}

}  // namespace halfgnn::cuda
