// A measuring aid: the feature loads of an SpMM and nothing else, on CUDA. See launch.h for what holds for all
// launchers.
#pragma once

#include "../../csrc/cuda/kernels/core/launch.h"

namespace halfgnn::cuda {

// Reads the rows of feat that `indices` names, in that order, in accesses of 16 bytes.
struct GatherLimitArgs {
  const void* indices = nullptr;  // int32 or int64
  int64_t num_indices = 0;
  bool is_int64 = false;
  const void* feat = nullptr;  // aligned to 16 bytes
  int64_t row_bytes = 0;       // a multiple of 16
  int64_t tile_bytes = 0;      // of every row, gathered for all indices before the next: a multiple of 16, at most 512
  uint32_t* words = nullptr;   // gather_limit_words(args) results
};

// The exclusive or of all results is that of the words gathered, four bytes each.
int64_t gather_limit_words(const GatherLimitArgs& args);
cudaError_t gather_limit(const GatherLimitArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
