// Both gradients of a sum weighted by a scalar a head, on CUDA: one gather for the two. See launch.h for what holds for
// all launchers.
#pragma once

#include "../core/launch.h"

namespace halfgnn::cuda {

size_t mul_backward_workspace(const MulBackwardArgs& args);
cudaError_t mul_backward(const MulBackwardArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
