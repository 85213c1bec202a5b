// The gradient of maxima and minima of fp16 by additions to the sources of their winners (plan/winners.h says when).
#pragma once

#include "../core/alignment.h"
#include "../core/launch.h"
#include "../plan/winners.h"

namespace halfgnn::cuda {

struct WinnersWorkspace {
  int64_t columns;  // of a slice; 0: elements are gathered
  int64_t bytes;    // sums of a slice, and then their flags
  int64_t flag_bytes;

  int64_t sum_bytes() const { return bytes - flag_bytes; }
};

// Takes gradients and results of kHalf, args.in_edges, and no other gradients.
cudaError_t scatter_winners(const CopyReduceBackwardArgs& args, const WinnersWorkspace& workspace,
                            const Launch& launch);

}  // namespace halfgnn::cuda
