// When dot attention takes tensor cores: which shapes they serve, and where they cost fewer instructions than the
// kernels that take all shapes. Both kinds of kernel have the same results, within the accuracy rule.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../core/warp.h"
#include "work.h"

namespace halfgnn::cuda {

// What the caller says of the choice (HALFGNN_TENSOR_CORES).
enum class TensorCores { kNever, kWherePossible, kWhereCheaper };

enum DotPass { kForwardDots, kDotsToDestinations, kDotsToSources };  // as in work.h

// One pass over an adjacency.
struct DotProblem {
  int64_t heads, dim;
  int64_t element_bytes;
  bool is_aligned;  // rows are read in accesses of 16 bytes
  DotPass pass;
  int64_t num_rows, num_edges;
};

// Elements of a head, at most.
constexpr int64_t kMaxTensorDim = 256;
constexpr int64_t kTensorAccess = 16;  // bytes
// Elements that a warp sums up in one access per lane.
constexpr int64_t kTensorBlock = 64;

constexpr bool serve_tensor_cores(const DotProblem& problem) {
  return problem.element_bytes == 2 && problem.is_aligned && problem.dim * problem.element_bytes % kTensorAccess == 0 &&
         problem.dim <= kMaxTensorDim;
}

// ---- Instructions of all warps.

// Of the kernels that take all shapes. Lanes share the row of an edge, all heads of it, two edges at a time; the rest
// of the warp takes other edges.
inline double pair_instructions(const DotProblem& problem) {
  const int64_t vectors = ceil_div(problem.heads * problem.dim * problem.element_bytes, kTensorAccess);
  const int64_t lanes = std::min<int64_t>(int64_t{1} << log2_ceil(vectors), kWarpSize);
  const RowWalk walk{problem.num_rows, problem.num_edges, 2 * kWarpSize / lanes};
  return static_cast<double>(ceil_div(vectors, kWarpSize)) * instructions_of(kDotAttentionWork[problem.pass], walk);
}

// Of those on tensor cores. A warp takes batches of 16 edges, of one head.
inline double tensor_instructions(const DotProblem& problem) {
  const RowWork& work = kDotTensorWork[log2_ceil(ceil_div(problem.dim, kTensorBlock))][problem.pass];
  return static_cast<double>(problem.heads) * instructions_of(work, {problem.num_rows, problem.num_edges, 16});
}

inline bool takes_tensor_cores(TensorCores wanted, int compute_major, const DotProblem& problem) {
  if (wanted == TensorCores::kNever || compute_major < 8 || !serve_tensor_cores(problem)) return false;
  if (wanted == TensorCores::kWherePossible) return true;
  return tensor_instructions(problem) < pair_instructions(problem);
}

}  // namespace halfgnn::cuda
