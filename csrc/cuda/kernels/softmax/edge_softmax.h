// Softmax over the edges of each row, and its gradient, on CUDA. See launch.h for what holds for all launchers.
#pragma once

#include "../core/launch.h"

namespace halfgnn::cuda {

size_t edge_softmax_workspace(const EdgeSoftmaxArgs& args);
cudaError_t edge_softmax(const EdgeSoftmaxArgs& args, const Launch& launch);
cudaError_t edge_softmax_backward(const EdgeSoftmaxArgs& args, const Launch& launch);  // same workspace

}  // namespace halfgnn::cuda
