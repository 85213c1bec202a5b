// When dot attention and GATv2 take tensor cores: which shapes they serve, and where they cost fewer instructions than
// the kernels that take all shapes. Both kinds of kernel have the same results, within the accuracy rule.
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
// edges to sources.
enum class AttentionTerms { kNone, kBias, kColumns, kOther };
constexpr uint32_t kMaxTensorColumns = 16;

constexpr int kTensorCoresMajor = 8;  // compute capability from which there are such tensor cores

// One pass over an adjacency.
struct AttentionProblem {
  int64_t heads, dim;
  int64_t element_bytes;
  bool is_aligned;  // rows are read in accesses of 16 bytes
  AttentionPass pass;
  int64_t num_rows, num_edges;
  bool is_gatv2 = false;
  AttentionTerms terms = AttentionTerms::kNone;
};

// Elements of a head, at most.
constexpr int64_t kMaxTensorDim = 128;
constexpr int64_t kTensorAccess = 16;  // bytes
// Elements that a warp sums up in one access per lane.
constexpr int64_t kTensorBlock = 64;

constexpr bool serve_tensor_cores(const AttentionProblem& problem) {
  return problem.element_bytes == 2 && problem.is_aligned && problem.dim * problem.element_bytes % kTensorAccess == 0 &&
         problem.dim <= kMaxTensorDim && problem.terms != AttentionTerms::kOther &&
         (problem.terms == AttentionTerms::kNone || problem.pass != kSourcePass);
}

// ---- Instructions of all warps.

// Of the kernels that take all shapes. Lanes share the row of an edge, all heads of it, four edges at a time, or two if
// an edge has two rows and terms; the rest of the warp takes other edges.
inline double pair_instructions(const AttentionProblem& problem, const RowWork& work, int64_t rows_per_edge) {
  const int64_t vectors = ceil_div(problem.heads * problem.dim * problem.element_bytes, kTensorAccess);
  const int64_t lanes = std::min<int64_t>(int64_t{1} << log2_ceil(vectors), kWarpSize);
  const int64_t edges = problem.terms == AttentionTerms::kNone ? 4 : 4 / rows_per_edge;
  const RowWalk walk{problem.num_rows, problem.num_edges, edges * kWarpSize / lanes, 1, edges * rows_per_edge};
  return static_cast<double>(ceil_div(vectors, kWarpSize)) * instructions_of(work, walk);
}
inline double pair_instructions(const AttentionProblem& problem) {
  if (problem.terms == AttentionTerms::kColumns) return pair_instructions(problem, kDotColumnsWork[problem.pass], 2);
  if (problem.terms == AttentionTerms::kBias) return pair_instructions(problem, kDotBiasWork[problem.pass], 2);
  if (!problem.is_gatv2) return pair_instructions(problem, kDotAttentionWork[problem.pass], 2);
  return pair_instructions(problem, kGatv2Work[problem.pass], problem.pass == kSourcePass ? 2 : 1);
}
// Of a pass of GATv2's backward with records of edges.
inline double recorded_instructions(const AttentionProblem& problem) {
  return pair_instructions(problem, kRecordedGatv2Work[problem.pass - kDestinationPass], 1);
}

// Of those on tensor cores. A warp takes batches of 16 edges, of one head.
inline double tensor_instructions(const AttentionProblem& problem) {
  const int log2_blocks = log2_ceil(ceil_div(problem.dim, kTensorBlock));
  const RowWork* works = problem.is_gatv2                            ? kGatv2TensorWork[log2_blocks]
                         : problem.terms == AttentionTerms::kNone    ? kDotTensorWork[log2_blocks]
                         : problem.terms == AttentionTerms::kColumns ? kDotTensorColumnsWork[log2_blocks]
                                                                     : kDotTensorBiasWork[log2_blocks];
  RowWork work = works[problem.pass];
  if (problem.dim != kTensorBlock << log2_blocks) work.batch *= kConditionalTensorLoads;
  return static_cast<double>(problem.heads) * instructions_of(work, {problem.num_rows, problem.num_edges, 16});
}

inline bool takes_tensor_cores(TensorCores wanted, int compute_major, const AttentionProblem& problem) {
  if (wanted == TensorCores::kNever || compute_major < kTensorCoresMajor || !serve_tensor_cores(problem)) return false;
  if (wanted == TensorCores::kWherePossible) return true;
  // Measured on an H200 without terms: lanes take between 0.6 and 1.1 times as long, 0.9 in the middle, though they
  // issue more instructions.
  if (problem.terms == AttentionTerms::kNone) return false;
  return tensor_instructions(problem) < pair_instructions(problem);
}

// ---- Records of edges, of GATv2's backward.

struct Choice {
  TensorCores wanted;
  int compute_major;
  Device device;
};

// The time of a pass over `num_columns` rows, with records of so many bytes per edge or without (0). What a pass reads
// and writes once per row is the same with both, and is left out.
inline double gatv2_backward_seconds(const Choice& choice, const AttentionProblem& problem, int64_t num_columns,
                                     int64_t record_bytes) {
  constexpr int64_t kIdBytes = 4;
  const bool is_to_sources = problem.pass == kSourcePass;
  const int64_t row_bytes = problem.heads * problem.dim * problem.element_bytes;
  const int64_t read_bytes = is_to_sources && record_bytes == 0 ? 2 * row_bytes : row_bytes;
  const bool on_tensor_cores = record_bytes == 0 && takes_tensor_cores(choice.wanted, choice.compute_major, problem);
  const double instructions = record_bytes > 0  ? recorded_instructions(problem)
                              : on_tensor_cores ? tensor_instructions(problem)
                                                : pair_instructions(problem);
  // Records of an edge, or those of its destination.
  const int64_t cached = !is_to_sources ? 0 : record_bytes > 0 ? record_bytes : kSectorBytes;
  const auto edges = static_cast<double>(problem.num_edges);
  const Slices whole{1,
                     read_bytes,
                     false,
                     static_cast<double>(cached),
                     edges * static_cast<double>(record_bytes > 0 ? 2 * kIdBytes + record_bytes : kIdBytes),
                     instructions};
  return times_of(choice.device, {num_columns, read_bytes, problem.num_edges}, whole, 0).total();
}

// Whether the backward takes less time with records of so many bytes per edge, where each pass without them takes the
// cheaper kernel.
inline bool takes_edge_records(const Choice& choice, const AttentionProblem& destinations,
                               const AttentionProblem& sources, int64_t record_bytes) {
  double without = 0, recorded = 0;
  for (const AttentionProblem* problem : {&destinations, &sources}) {
    const bool on_tensor_cores = takes_tensor_cores(choice.wanted, choice.compute_major, *problem);
    if (on_tensor_cores && choice.wanted == TensorCores::kWherePossible) return false;
    const int64_t num_columns = (problem == &destinations ? sources : destinations).num_rows;
    without += gatv2_backward_seconds(choice, *problem, num_columns, 0);
    recorded += gatv2_backward_seconds(choice, *problem, num_columns, record_bytes);
  }
  return recorded < without;
}

}  // namespace halfgnn::cuda
