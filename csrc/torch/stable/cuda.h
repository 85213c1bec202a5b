// Streams and errors of CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "abi.h"

// Functions of libtorch_cuda.so, which a torch without CUDA lacks. The library loads without them too; its kernels for
// CUDA, which alone call them, are then never called, because nothing can make a tensor for them.
#pragma weak aoti_torch_get_current_cuda_stream
#pragma weak torch_c10_cuda_check_msg
#pragma weak torch_c10_cuda_free_error_msg
#pragma weak torch_cuda_stream_synchronize

namespace halfgnn {

// Of the current device.
inline cudaStream_t current_stream() {
  int32_t device;
  void* stream;
  HALFGNN_ABI(aoti_torch_get_current_device_index, &device);
  HALFGNN_ABI(aoti_torch_get_current_cuda_stream, device, &stream);
  return static_cast<cudaStream_t>(stream);
}

namespace abi {

[[gnu::cold]] inline void check_cuda(cudaError_t status, const char* file, const char* function, int line) {
  char* message = nullptr;
  torch_c10_cuda_check_msg(static_cast<int32_t>(status), file, function, static_cast<uint32_t>(line), true, &message);
  if (message == nullptr) return;
  const std::string text = message;
  torch_c10_cuda_free_error_msg(message);
  throw std::runtime_error(text);
}

}  // namespace abi
}  // namespace halfgnn

#define CHECK_CUDA(call)                                                                                         \
  do {                                                                                                           \
    const cudaError_t halfgnn_status = (call);                                                                   \
    if (halfgnn_status != cudaSuccess) ::halfgnn::abi::check_cuda(halfgnn_status, __FILE__, __func__, __LINE__); \
  } while (0)
