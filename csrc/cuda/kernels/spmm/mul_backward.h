// Both gradients of a sum weighted by a scalar a head, on CUDA: one gather for the two. See launch.h for what holds for
// all launchers.
#pragma once

#include "../core/launch.h"

namespace halfgnn::cuda {

size_t mul_backward_workspace(const MulBackwardArgs& args);
cudaError_t mul_backward(const MulBackwardArgs& args, const Launch& launch);

// Whether a dot over in-edges and a weighted sum are predicted to be faster (plan/backward.h).
bool takes_two_gathers(const MulBackwardArgs& args, const Topology& in_edges);

}  // namespace halfgnn::cuda
