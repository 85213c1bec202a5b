// The stream that kernels run on.
#pragma once

#include <c10/cuda/CUDAStream.h>

namespace halfgnn::cuda {

// Of the current device.
inline cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream(); }

}  // namespace halfgnn::cuda
