// What a pass of dot attention or GATv2 costs; when dot attention with terms of edges takes tensor cores: which shapes
// they serve, and where they cost fewer instructions than the kernels that take all shapes. Both kinds of kernel have
// the same results, within the accuracy rule. And when GATv2's backward keeps records of edges.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../core/warp.h"
#include "slices.h"
#include "work.h"

namespace halfgnn::cuda {

// What the caller says of the choice (HALFGNN_TENSOR_CORES).
enum class TensorCores { kNever, kWherePossible, kWhereCheaper };

enum AttentionPass { kForwardPass, kDestinationPass, kSourcePass };  // as in work.h

// What edges add to dot attention. Tensor cores take a bias, and at most kMaxTensorColumns columns, but not records of
// edges to sources. Without terms they are not there: measured on an H200, lanes took between 0.5 and 1.15 times as
// long.
enum class AttentionTerms { kBias, kColumns, kOther };
constexpr uint32_t kMaxTensorColumns = 16;

constexpr int kTensorCoresMajor = 8;  // compute capability from which there are such tensor cores

// One pass over an adjacency.
struct AttentionProblem {
  int64_t heads, dim;
  int64_t element_bytes;
  bool is_aligned;  // rows are read in accesses of 16 bytes
  AttentionPass pass;
  int64_t num_rows, num_edges;
  AttentionTerms terms = AttentionTerms::kOther;  // of dot attention
};

// Elements of a head, at most.
constexpr int64_t kMaxTensorDim = 128;
constexpr int64_t kTensorAccess = 16;  // bytes
// Elements that a warp sums up in one access per lane.
constexpr int64_t kTensorBlock = 64;

constexpr bool serve_tensor_cores(const AttentionProblem& problem) {
  return problem.element_bytes == 2 && problem.is_aligned && problem.dim * problem.element_bytes % kTensorAccess == 0 &&
         problem.dim <= kMaxTensorDim && problem.terms != AttentionTerms::kOther && problem.pass != kSourcePass;
}

// ---- Instructions of all warps.

// Of the kernels that take all shapes. Lanes share the row of an edge, all heads of it, `edges` edges at a time; the
// rest of the warp takes other edges.
inline double pair_instructions(const AttentionProblem& problem, const RowWork& work, int64_t edges,
                                int64_t rows_per_edge) {
  const int64_t vectors = ceil_div(problem.heads * problem.dim * problem.element_bytes, kTensorAccess);
  const int64_t lanes = std::min<int64_t>(int64_t{1} << log2_ceil(vectors), kWarpSize);
  const RowWalk walk{problem.num_rows, problem.num_edges, edges * kWarpSize / lanes, 1, edges * rows_per_edge};
  return static_cast<double>(ceil_div(vectors, kWarpSize)) * instructions_of(work, walk);
}
// Of dot attention with terms.
inline double dot_instructions(const AttentionProblem& problem) {
  const bool has_columns = problem.terms == AttentionTerms::kColumns;
  return pair_instructions(problem, (has_columns ? kDotColumnsWork : kDotBiasWork)[problem.pass], 2, 2);
}
// The same on tensor cores. A warp takes batches of 16 edges, of one head.
inline double tensor_instructions(const AttentionProblem& problem) {
  const int log2_blocks = log2_ceil(ceil_div(problem.dim, kTensorBlock));
  const bool has_columns = problem.terms == AttentionTerms::kColumns;
  RowWork work = (has_columns ? kDotTensorColumnsWork : kDotTensorBiasWork)[log2_blocks][problem.pass];
  if (problem.dim != kTensorBlock << log2_blocks) work.batch *= kConditionalTensorLoads;
  return static_cast<double>(problem.heads) * instructions_of(work, {problem.num_rows, problem.num_edges, 16});
}

inline bool takes_tensor_cores(TensorCores wanted, int compute_major, const AttentionProblem& problem) {
  if (wanted == TensorCores::kNever || compute_major < kTensorCoresMajor || !serve_tensor_cores(problem)) return false;
  return wanted == TensorCores::kWherePossible || tensor_instructions(problem) < dot_instructions(problem);
}

// ---- Records of edges, of GATv2's backward.

// The time of a pass over `num_columns` rows, with records of so many bytes per edge or without (0). What a pass reads
// and writes once per row is the same with both, and is left out.
inline double gatv2_backward_seconds(const Device& device, const AttentionProblem& problem, int64_t num_columns,
                                     int64_t record_bytes) {
  constexpr int64_t kIdBytes = 4;
  const bool is_to_sources = problem.pass == kSourcePass, is_recorded = record_bytes > 0;
  const int64_t rows_per_edge = is_to_sources && !is_recorded ? 2 : 1;
  const int64_t read_bytes = rows_per_edge * problem.heads * problem.dim * problem.element_bytes;
  const RowWork& work = is_recorded ? kRecordedGatv2Work[problem.pass - kDestinationPass] : kGatv2Work[problem.pass];
  // Records of an edge, or those of its destination.
  const int64_t cached = !is_to_sources ? 0 : is_recorded ? record_bytes : kSectorBytes;
  const auto edges = static_cast<double>(problem.num_edges);
  const Slices whole{1,
                     read_bytes,
                     false,
                     static_cast<double>(cached),
                     edges * static_cast<double>(is_recorded ? 2 * kIdBytes + record_bytes : kIdBytes),
                     pair_instructions(problem, work, 4, rows_per_edge)};
  return times_of(device, {num_columns, read_bytes, problem.num_edges}, whole, 0).total();
}

// Whether the backward takes less time with records of so many bytes per edge.
inline bool takes_edge_records(const Device& device, const AttentionProblem& destinations,
                               const AttentionProblem& sources, int64_t record_bytes) {
  const auto seconds = [&](int64_t bytes) {
    return gatv2_backward_seconds(device, destinations, sources.num_rows, bytes) +
           gatv2_backward_seconds(device, sources, destinations.num_rows, bytes);
  };
  return seconds(record_bytes) < seconds(0);
}

}  // namespace halfgnn::cuda
