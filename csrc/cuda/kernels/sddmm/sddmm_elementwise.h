// The division of labour of sddmm_elementwise: what sddmm.cu chooses and its kernels carry out.
#pragma once

#include "../core/rows.cuh"

namespace halfgnn::cuda {

// Edges whose ids a warp holds at a time.
constexpr int kChunkEdges = 128;
constexpr int kElementwiseWarps = 4;
constexpr int kMaxElementwiseOperands = 3;

struct ElementwiseOperand {
  const void* data = nullptr;
  Target target = Target::kEdge;
};

struct ElementwiseArgs {
  Rows rows;
  Ids indices, edge_ids;
  Op op;
  ElementwiseOperand operand[kMaxElementwiseOperands];  // those that exist first: a copy has one
  bool reads_row, reads_col;
  void* out;
  bool out_is_float;
  uint32_t row_bytes;     // of an operand
  int32_t row_vectors;    // of an operand, and of the result
  int32_t slice_vectors;  // all warps walk a slice of the rows before the next: see plan/units.h
  int32_t edges_per_warp;
  uint32_t slice_blocks;
};

// For elements of type T. The build instantiates it: build_sources.py. `vector`: elements per access.
template <typename T>
cudaError_t sddmm_elementwise_of(const ElementwiseArgs& args, int vector, int64_t blocks, cudaStream_t stream);

}  // namespace halfgnn::cuda
