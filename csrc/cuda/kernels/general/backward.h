// Gradients of any operator and broadcast, on CUDA. See launch.h for what holds for all launchers.
#pragma once

#include "../core/launch.h"

namespace halfgnn::cuda {

size_t backward_workspace(const BackwardArgs& args);
cudaError_t backward(const BackwardArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
