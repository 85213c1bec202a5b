// Several reductions of copies in one pass over a row's edges (sum, mean, maximum, minimum, variance, standard
// deviation), and their gradient in one pass over the edges of each gathered row, on CUDA. See launch.h for what holds
// for all launchers.
//
// Method         As in spmm.h: a warp takes some rows or a piece of one, groups of lanes work on several edges at once.
//                Squares are of distances from a value near the row's mean: of one or two of its first edges, and in a
//                row of more edges than a team holds ids of, from then on the mean of these, to which what was summed
//                before is moved. So features keep their digits whatever their offset, and what lanes and pieces
//                hold is joined by additions. Of two-byte types two elements are compared at a time, and what lanes
//                hold is joined as integers that have an element above the place of its edge. The backward first makes,
//                of each reduced node, the coefficients of what its edges pass on: level + slope * feat. Then it
//                gathers these, and the gradients and winners of extremes, over out-edges. Gradients of extremes of
//                fp16 alone are added to the sources of winners instead where that is taken to be faster
//                (scatter_winners.cu).
#pragma once

#include "../core/launch.h"

namespace halfgnn::cuda {

// Rows that these take: of at least one value, not fp64, with winners in 32 bits.
bool has_copy_reduce(DType type, int64_t dim, int64_t num_edges);

size_t copy_reduce_workspace(const CopyReduceArgs& args);
cudaError_t copy_reduce(const CopyReduceArgs& args, const Launch& launch);

size_t copy_reduce_backward_workspace(const CopyReduceBackwardArgs& args);
cudaError_t copy_reduce_backward(const CopyReduceBackwardArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
