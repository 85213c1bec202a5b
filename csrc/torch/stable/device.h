// Current devices, and page-locked memory.
#pragma once

#include "../tensor.h"

#ifdef HALFGNN_CUDA_KEY
#include "cuda.h"
#endif

namespace halfgnn {

class DeviceGuard {
 public:
  explicit DeviceGuard(const Device& device) {
    if (device.is_cuda()) HALFGNN_ABI(aoti_torch_create_device_guard, device.index(), &guard_);
  }
  ~DeviceGuard() {
    if (guard_ != nullptr) aoti_torch_delete_device_guard(guard_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  DeviceGuardHandle guard_ = nullptr;
};

// Page-locked memory of a tensor must not go to another tensor before the current stream of a GPU has read it. The
// stable ABI does not reach the allocator that could wait, so this waits.
inline void keep_until_read([[maybe_unused]] const Tensor& tensor, [[maybe_unused]] const Device& device) {
#ifdef HALFGNN_CUDA_KEY
  HALFGNN_ABI(torch_cuda_stream_synchronize, current_stream(), device.index());
#endif
}

}  // namespace halfgnn
