// Sums and means of messages that are made of a node's row and an edge's row of the same width, and the gradients of
// both, on CUDA. See launch.h for what holds for all launchers.
//
// Method         As in spmm.h: a warp takes some rows or a piece of one, groups of lanes work on several edges at once.
//                A lane has the same elements of both rows of a message, so that nothing passes between lanes but ids
//                and, once per row, sums. An edge's row is read once. The backward gathers the gradients of the sums
//                over out-edges: each of them gives the gradient of the edge's row, which is written once, and is added
//                to that of the source.
#pragma once

#include "../core/launch.h"

namespace halfgnn::cuda {

size_t edge_sum_workspace(const EdgeSumArgs& args);
cudaError_t edge_sum(const EdgeSumArgs& args, const Launch& launch);

size_t edge_sum_backward_workspace(const EdgeSumBackwardArgs& args);
cudaError_t edge_sum_backward(const EdgeSumBackwardArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
