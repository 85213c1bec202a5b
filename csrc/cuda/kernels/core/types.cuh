// The C++ types of elements on CUDA.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../../../core/with_type.h"

namespace halfgnn::cuda {

// f(Type<T>{}) for half, bfloat16 or float. Launchers refuse kDouble before they come here.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class F>
HALFGNN_HOST_DEVICE auto with_type(DType type, F f) {
  return halfgnn::with_type(ElementTypes<__half, __nv_bfloat16>{}, type, f);
}

}  // namespace halfgnn::cuda
