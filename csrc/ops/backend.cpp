#include "backend.h"

#include <c10/util/Exception.h>

#include <array>

namespace halfgnn {
namespace {

// One slot a device type. A function's static: other files add to it while they are initialised.
auto& backends() {
  static std::array<const Backend*, c10::COMPILE_TIME_MAX_DEVICE_TYPES> slots{};
  return slots;
}

}  // namespace

const Backend& backend_of(const c10::Device& device) {
  const Backend* backend = backends()[static_cast<size_t>(device.type())];
  TORCH_CHECK_NOT_IMPLEMENTED(backend, "indptr is on ", device, ", for which halfgnn has no kernels in this build");
  return *backend;
}

bool add_backend(c10::DeviceType type, const Backend& backend) {
  backends()[static_cast<size_t>(type)] = &backend;
  return true;
}

}  // namespace halfgnn
