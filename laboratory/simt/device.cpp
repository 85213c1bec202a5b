#include "device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "shared_memory.h"
#include "simt/runtime.h"

#define SIMT_EXPORT extern "C" __attribute__((visibility("default")))

namespace simt {

Settings settings;
OnLaunch on_launch = nullptr;

namespace {

struct Name {
  const char* name;
  int64_t Settings::* member;
};
constexpr Name kNames[] = {
    {"seed", &Settings::seed},
    {"l2_cache_bytes", &Settings::l2_cache_bytes},
    {"multiprocessors", &Settings::multiprocessors},
    {"memory_bytes", &Settings::memory_bytes},
    {"memory_kilohertz", &Settings::memory_kilohertz},
    {"arch", &Settings::arch},
    {"shuffles", &Settings::shuffles},
    {"matrices", &Settings::matrices},
    {"warp_barriers", &Settings::warp_barriers},
    {"block_barriers", &Settings::block_barriers},
    {"fences", &Settings::fences},
    {"copies", &Settings::copies},
    {"races", &Settings::races},
    {"launches", &Settings::launches},
    {"memsets", &Settings::memsets},
    {"blocks", &Settings::blocks},
    {"switches", &Settings::switches},
};

std::unordered_map<const void*, int>& shared_limits() {
  static std::unordered_map<const void*, int> limits;
  return limits;
}

}  // namespace

Settings::Settings() {
  for (const Name& entry : kNames) {
    std::string variable = std::string("HALFGNN_SIMT_") + entry.name;
    for (char& c : variable) c = static_cast<char>(std::toupper(c));
    if (const char* value = std::getenv(variable.c_str())) this->*entry.member = std::atoll(value);
  }
}

int64_t* Settings::find(const char* name) {
  for (const Name& entry : kNames) {
    if (std::strcmp(entry.name, name) == 0) return &(this->*entry.member);
  }
  return nullptr;
}

int arch() { return static_cast<int>(settings.arch); }

std::set<const void*>& launched_kernels() {
  static std::set<const void*> kernels;
  return kernels;
}

size_t dynamic_shared_limit(const void* kernel) {
  const auto found = shared_limits().find(kernel);
  return found == shared_limits().end() ? kStaticSharedBytes : static_cast<size_t>(found->second);
}

}  // namespace simt

// ---- for tests ---------------------------------------------------------------------------------

SIMT_EXPORT int simt_set(const char* name, long long value) {
  int64_t* const setting = simt::settings.find(name);
  if (setting != nullptr) *setting = value;
  return setting != nullptr;
}
SIMT_EXPORT long long simt_get(const char* name) {
  const int64_t* const setting = simt::settings.find(name);
  return setting != nullptr ? *setting : -1;
}

// Writes to `places` where in this library the kernels are that have run, as the library's symbols say it, but not more
// of them than `size`. Returns their number.
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start;
SIMT_EXPORT size_t simt_launched(uint64_t* places, size_t size) {
  const auto& kernels = simt::launched_kernels();
  for (const void* kernel : kernels) {
    if (size-- == 0) break;
    *places++ = static_cast<uint64_t>(static_cast<const char*>(kernel) - &__ehdr_start);
  }
  return kernels.size();
}

// Without a function: the simulator runs every kernel again.
SIMT_EXPORT void simt_on_launch(simt::OnLaunch function) { simt::on_launch = function; }

// ---- what launchers call -----------------------------------------------------------------------

extern "C" {

// Launchers remember what they learned of a device. So each one that settings describe has a number of its own.
cudaError_t cudaGetDevice(int* device) {
  static std::vector<std::array<int64_t, 5>> described;
  const simt::Settings& settings = simt::settings;
  const std::array<int64_t, 5> current{settings.l2_cache_bytes, settings.multiprocessors, settings.memory_bytes,
                                       settings.memory_kilohertz, settings.arch};
  const auto found = std::find(described.begin(), described.end(), current);
  *device = static_cast<int>(found - described.begin());
  if (found == described.end()) described.push_back(current);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  std::strcpy(properties->name, "simulator");
  properties->major = simt::arch() / 100;
  properties->minor = simt::arch() / 10 % 10;
  properties->l2CacheSize = static_cast<int>(simt::settings.l2_cache_bytes);
  properties->multiProcessorCount = static_cast<int>(simt::settings.multiprocessors);
  properties->totalGlobalMem = static_cast<size_t>(simt::settings.memory_bytes);
  properties->memoryBusWidth = 1024;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  switch (attribute) {
    case cudaDevAttrL2CacheSize: *value = static_cast<int>(simt::settings.l2_cache_bytes); return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = static_cast<int>(simt::settings.multiprocessors); return cudaSuccess;
    case cudaDevAttrMemoryClockRate:
      *value = static_cast<int>(simt::settings.memory_kilohertz);
      return simt::settings.memory_kilohertz > 0 ? cudaSuccess : cudaErrorInvalidValue;
    case cudaDevAttrWarpSize: *value = warpSize; return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = simt::kStaticSharedBytes; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = simt::kMaxSharedBytes; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = simt::arch() / 100; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = simt::arch() / 10 % 10; return cudaSuccess;
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<size_t>(value) > simt::kMaxSharedBytes) return cudaErrorInvalidValue;
  simt::shared_limits()[kernel] = value;
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t /*stream*/) {
  std::memset(target, value, bytes);
  ++simt::settings.memsets;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind, cudaStream_t /*stream*/) {
  std::memcpy(target, source, bytes);
  return cudaSuccess;
}

// The CPU's memory is the device's.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  attributes->type = cudaMemoryTypeManaged;
  attributes->devicePointer = attributes->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }  // launches report their own

const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    default: return "an error";
  }
}

// assert() in kernels: build.py gives it this name.
[[noreturn]] void simt_assert_fail(const char* assertion, const char* file, unsigned int line,
                                   const char* /*function*/) {
  simt::fail((std::string("assertion ") + assertion + " failed").c_str(), {file, static_cast<int>(line)});
}

}  // extern "C"
