// One kernel per family of operators in the fewest lines: what the fast kernels of csrc/cuda/kernels compute, to be
// read before them, and an oracle for tests. One thread per result; see launch.h for what holds for all launchers.
#pragma once

#include "../../csrc/cuda/kernels/core/launch.h"

namespace halfgnn::cuda {

enum class Score : int8_t { kGat, kGatv2, kDot };

// Of a CSC matrix with int32 ids. Tensors are of one type. Rows of x and out have heads * dim elements.
struct NaiveArgs {
  const int32_t* indptr = nullptr;   // (num_rows + 1,)
  const int32_t* indices = nullptr;  // (num_edges,) the source of each position
  int64_t num_rows = 0, num_edges = 0;
  int64_t heads = 1, dim = 1;
  DType type = DType::kFloat;
  const void* x = nullptr;       // (num_src, heads, dim) what is summed, or of which maxima are; the sources of dots
  const void* y = nullptr;       // (num_rows, heads, dim) the destinations of dots
  const void* weight = nullptr;  // (num_edges, heads), by position: weights of a sum, logits of a softmax
  void* out = nullptr;
  int32_t* winner = nullptr;  // of maxima: the sources that won; -1 without edges
};

// What attention computes logits of.
struct NaiveScore {
  Score score = Score::kGat;
  const void* of_src = nullptr;  // (num_src, heads, dim), or one number per head for GAT
  const void* of_dst = nullptr;  // (num_rows, heads, dim), or one number per head for GAT
  const void* attn = nullptr;    // (heads, dim) of GATv2
  float constant = 0.f;          // LeakyReLU's slope, or the scale of dots
};

cudaError_t naive_sum(const NaiveArgs& args, const Launch& launch);
cudaError_t naive_max(const NaiveArgs& args, const Launch& launch);
cudaError_t naive_dot(const NaiveArgs& args, const Launch& launch);      // out: (num_edges, heads), by position
cudaError_t naive_softmax(const NaiveArgs& args, const Launch& launch);  // out: (num_edges, heads), by position
cudaError_t naive_attention(const NaiveArgs& args, const NaiveScore& score, const Launch& launch);

}  // namespace halfgnn::cuda
