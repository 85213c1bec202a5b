// The CUDA back end, and the device that it serves. The simulator of laboratory/simt compiles it for another.
#pragma once

#include "../core/backend.h"
#include "../torch/tensor.h"

#ifndef HALFGNN_CUDA_DEVICE
#define HALFGNN_CUDA_DEVICE DeviceType::CUDA
#endif

namespace halfgnn::cuda {

constexpr DeviceType kDevice = HALFGNN_CUDA_DEVICE;
extern const Backend kBackend;

}  // namespace halfgnn::cuda
