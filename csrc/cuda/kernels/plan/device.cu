#include "device.h"

#include <cuda_runtime_api.h>

#include <array>
#include <mutex>
#include <optional>

namespace halfgnn::cuda {
namespace {

constexpr int kMaxDevices = 64;  // whose facts are kept

Device device_of(int ordinal) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) return {};
  return {properties.l2CacheSize, static_cast<int64_t>(properties.totalGlobalMem)};
}

}  // namespace

Device current_device() {
  static std::mutex mutex;
  static std::array<std::optional<Device>, kMaxDevices> devices;
  int ordinal = 0;
  if (cudaGetDevice(&ordinal) != cudaSuccess) return {};
  if (ordinal >= kMaxDevices) return device_of(ordinal);
  const std::lock_guard<std::mutex> lock(mutex);
  std::optional<Device>& device = devices[static_cast<size_t>(ordinal)];
  if (!device) device = device_of(ordinal);
  return *device;
}

}  // namespace halfgnn::cuda
