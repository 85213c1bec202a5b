// The CUDA back end, and the device that it serves. The simulator of laboratory/simt compiles it for another.
#pragma once

#include <c10/core/DeviceType.h>

#include "../core/backend.h"

#ifndef HALFGNN_CUDA_DEVICE
#define HALFGNN_CUDA_DEVICE c10::kCUDA
#endif

namespace halfgnn::cuda {

constexpr c10::DeviceType kDevice = HALFGNN_CUDA_DEVICE;
extern const Backend kBackend;

}  // namespace halfgnn::cuda
