// Sums, means, maxima and minima of messages over the edges of each row, on CUDA. See launch.h for what holds for all
// launchers.
//
// Method         A warp takes some rows or a piece of one. Groups of lanes work on several edges at once. Indices are
//                loaded coalesced and shared within the warp as in GE-SpMM (Huang et al., SC 2020), rows are read with
//                vector accesses as in Sputnik (Gale et al., SC 2020), pieces of hubs are combined as in merge-based
//                SpMM (Yang et al., Euro-Par 2018).
#pragma once

#include "../core/launch.h"

namespace halfgnn::cuda {

// Plain and weighted sums and means: the fast path. Any heads * dim > 0.
size_t spmm_sum_workspace(const SpmmSumArgs& args);
cudaError_t spmm_sum(const SpmmSumArgs& args, const Launch& launch);

// Entries that a schedule of the rows must have. Sums, and maxima and minima of copies, follow one from sm_80 on; other
// launchers do not read it.
int64_t schedule_length(const Topology& topology);

// Any operator, broadcast and reduction; maxima and minima of copies have kernels of their own.
size_t spmm_workspace(const SpmmArgs& args);
cudaError_t spmm(const SpmmArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
