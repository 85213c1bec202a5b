#include "device.h"

#include <cuda_runtime_api.h>

#include <array>
#include <mutex>
#include <optional>

#include "gpus.h"

namespace halfgnn::cuda {
namespace {

constexpr int kMaxDevices = 64;  // whose facts are kept

// In Hz; 0 if CUDA does not say.
double clock_of(cudaDeviceAttr attribute, int ordinal) {
  int kilohertz = 0;
  return cudaDeviceGetAttribute(&kilohertz, attribute, ordinal) == cudaSuccess ? 1e3 * kilohertz : 0;
}

Device ask_cuda(int ordinal) {
  cudaDeviceProp found;
  if (cudaGetDeviceProperties(&found, ordinal) != cudaSuccess) return {};
  return device_of({found.name, found.major, found.minor, found.l2CacheSize, static_cast<int64_t>(found.totalGlobalMem),
                    found.multiProcessorCount, clock_of(cudaDevAttrClockRate, ordinal),
                    clock_of(cudaDevAttrMemoryClockRate, ordinal), found.memoryBusWidth});
}

}  // namespace

Device current_device() {
  static std::mutex mutex;
  static std::array<std::optional<Device>, kMaxDevices> devices;
  int ordinal = 0;
  if (cudaGetDevice(&ordinal) != cudaSuccess) return {};
  if (ordinal >= kMaxDevices) return ask_cuda(ordinal);
  const std::lock_guard<std::mutex> lock(mutex);
  std::optional<Device>& device = devices[static_cast<size_t>(ordinal)];
  if (!device) device = ask_cuda(ordinal);
  return *device;
}

}  // namespace halfgnn::cuda
