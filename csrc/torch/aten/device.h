// Current devices, and page-locked memory.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include "../tensor.h"

namespace halfgnn {

using c10::DeviceGuard;

// Page-locked memory of a tensor must not go to another tensor before the current stream of a GPU has read it.
inline void keep_until_read([[maybe_unused]] const Tensor& tensor, const Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStream(device);
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 8
  const at::DataPtr& memory = tensor.storage().data_ptr();
  at::getHostAllocator(device.type())->record_event(memory.get(), memory.get_context(), stream);
#else
  guard.synchronizeStream(stream);  // no interface of the allocator here is in all builds
#endif
}

}  // namespace halfgnn
