// Streams and errors of CUDA.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

namespace halfgnn {

// Of the current device.
inline cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream(); }

}  // namespace halfgnn

#define CHECK_CUDA C10_CUDA_CHECK
