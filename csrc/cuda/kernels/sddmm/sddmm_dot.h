// Between sddmm_dot.cu and sddmm_dot.cuh, which holds the kernel.
#pragma once

#include "sddmm.h"

namespace halfgnn::cuda {

// For elements of type T. The build instantiates it: build_sources.py.
template <typename T>
cudaError_t sddmm_dot_of(const SddmmArgs& args, float factor, const Launch& launch);

}  // namespace halfgnn::cuda
