// The device that the CUDA bindings serve. The simulator of tests/simt compiles them for another.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/cuda/CUDAStream.h>

#ifndef HALFGNN_CUDA_DEVICE
#define HALFGNN_CUDA_DEVICE c10::kCUDA
#define HALFGNN_CUDA_KEY CUDA
#endif

namespace halfgnn::cuda {

constexpr c10::DeviceType kDevice = HALFGNN_CUDA_DEVICE;

// Of the current device.
inline cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream(); }

}  // namespace halfgnn::cuda
