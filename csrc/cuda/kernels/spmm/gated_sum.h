// The gated sum of core/gated_sum.h and its gradients, on CUDA. See launch.h for what holds for all launchers, and
// edge_sum.h for the method: gates are functions of a node's rows and an edge's row, element by element, so that
// nothing passes between lanes but ids and, once per row, sums.
#pragma once

#include "../../../core/gated_sum.h"
#include "../core/launch.h"

namespace halfgnn::cuda {

size_t gated_sum_workspace(const GatedSumArgs& args);
cudaError_t gated_sum(const GatedSumArgs& args, const Launch& launch);

size_t gated_sum_backward_workspace(const GatedSumBackwardArgs& args);
cudaError_t gated_sum_backward(const GatedSumBackwardArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
