// What every launcher of csrc/cuda/kernels takes beside its arguments, and what holds for all of them:
//
// Arguments      the structs of csrc/core/arguments.h: raw device pointers, contiguous, aligned to their element.
//                Tables on the host (Broadcast::lhs_offset and the like) are not read.
// Topology       trusted: an index outside an operand reads outside it. int32 or int64; fewer than 2^32 - 1 edges and
//                nodes. Rows without edges are written as 0; results need not be initialised.
// Accumulation   fp32, rounded once, at the store. Sums of many terms are made of partial sums, so that a hub rounds no
//                worse than an ordinary row. inf and nan propagate.
// Determinism    no float atomics: equal inputs at equal alignment give equal bits.
// Workspace      `<launcher>_workspace(args)` bytes, aligned to 16, uninitialised; null where it is 0.
// Stream         runs on `stream`, never synchronises, allocates nothing, and chooses its grids from sizes alone, so
//                that it can be captured in a CUDA graph.
// Result         the status of the launches; cudaErrorInvalidValue for sizes beyond those above.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "../../../core/arguments.h"

namespace halfgnn::cuda {

struct Launch {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
};

}  // namespace halfgnn::cuda
