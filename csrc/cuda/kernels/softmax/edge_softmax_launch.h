// Between edge_softmax.cu, which chooses, and edge_softmax.cuh, which holds the kernels.
#pragma once

#include "../core/rows.cuh"
#include "../core/vector.cuh"

namespace halfgnn::cuda {

constexpr int kSoftmaxWarps = 4;  // of a block

// Items of `bytes` that a lane holds at most: 64 bytes of registers, and no more than 8 items, since their addresses
// need registers too. Always 8 of whole accesses that are edges: a row then fits the lanes that share it more often,
// and is read once, and fewer lanes add up their sums.
constexpr int softmax_items(int bytes, bool backward, bool flat) {
  const int items = 64 / (backward ? 2 * bytes : bytes);
  return items < 8 && (flat || bytes < kMaxAccessBytes) ? items : 8;
}

// See the terms in edge_softmax.cuh.
struct SoftmaxProblem {
  Rows rows;
  Ids edge_ids;
  const void* values;  // logits, or the forward's results
  const void* grad;
  void* out;
  float* partial;  // (slots, 2, columns)
  int64_t columns;
  uint32_t full_vectors;  // flat layout: of the whole array
  uint32_t item_bytes;    // from one item to the next; item number = edge id, or position in the flat layout
  int32_t num_vectors;    // of an edge
  int32_t log2_lanes;     // of an edge
  int32_t log2_team;      // lanes for an average row
  int32_t num_slices;     // blocks that share an edge's columns
};
struct SoftmaxShape {
  int vector;  // elements
  bool flat;
  int64_t row_blocks;
};

// For elements of type T. The build instantiates it: build_sources.py.
template <typename T, bool kBackward>
cudaError_t launch_softmax(const SoftmaxProblem& problem, const SoftmaxShape& shape, cudaStream_t stream);

}  // namespace halfgnn::cuda
