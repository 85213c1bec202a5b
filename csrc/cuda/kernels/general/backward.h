// Gradients of SpMM and SDDMM on CUDA. See launch.h for what holds for all launchers.
#pragma once

#include "../core/launch.h"

namespace halfgnn::cuda {

// Both gradients of a sum weighted by a scalar a head: one gather for the two.
size_t mul_backward_workspace(const MulBackwardArgs& args);
cudaError_t mul_backward(const MulBackwardArgs& args, const Launch& launch);

// Gradients of any operator and broadcast.
size_t backward_workspace(const BackwardArgs& args);
cudaError_t backward(const BackwardArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
