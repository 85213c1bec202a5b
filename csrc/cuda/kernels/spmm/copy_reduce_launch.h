// Between copy_reduce.cu, which chooses, and copy_reduce.cuh and copy_reduce_backward.cuh, which hold the kernels.
#pragma once

#include "combine_reductions.h"
#include "copy_reduce.h"
#include "spmm.cuh"

namespace halfgnn::cuda {

struct CopyReduceKernelArgs {
  Gather gather;
  ReductionsOut out;
  PartialReductions partial;
  bool has_sums;
  bool has_squares;
  bool has_extrema;
};

// Where edges won: a byte per edge, of which bit i says that the edge won one of the columns [i, i + 1) * columns. In
// rows of many edges most edges win nothing, or in few columns, and only what they won is read.
struct WinnerMarks {
  static constexpr int kBits = 8;

  uint8_t* of_edge;  // null: none, everything is read
  int32_t columns;   // a multiple of every access

  __host__ __device__ uint32_t bit(int64_t column) const { return 1u << (column / columns); }
};

struct CopyReduceBackwardKernelArgs {
  Gather gather;  // only its units and number of vectors: there are several arrays
  Ids edge_ids;
  const float* level;  // null: no sums
  const float* slope;  // null: no squares
  const void* max;     // gradients; null: none
  const void* min;
  const int32_t* arg_max;
  const int32_t* arg_min;
  uint32_t record_bytes;  // from a node's level to the next one's
  uint32_t grad_bytes;    // of a row of gradients, and of winners
  uint32_t arg_bytes;
  WinnerMarks marks;
  const void* feat;
  DType type;  // of feat and grad_feat
  void* grad_feat;
  float* partial;
};

// What an edge into a node adds to its source's gradient but for winners: level + slope * x, where x is the source's
// feature. A row of levels for each node, and then one of slopes, if var or std has a gradient.
cudaError_t reduce_records(const CopyReduceBackwardArgs& args, float* records, const Launch& launch);

// Writes the marks of the winners of both extremes.
cudaError_t mark_winners(const CopyReduceBackwardArgs& args, const WinnerMarks& marks, const Launch& launch);

// For features, in the backward gradients, of type T. The build instantiates them: build_sources.py.
template <typename T>
cudaError_t copy_reduce_of(const CopyReduceArgs& args, const CopyReduceKernelArgs& kernel_args,
                           const GatherShape& shape, const Launch& launch);
template <typename T>
cudaError_t copy_reduce_backward_of(const CopyReduceBackwardArgs& args, const CopyReduceBackwardKernelArgs& kernel_args,
                                    const GatherShape& shape, const Launch& launch);

}  // namespace halfgnn::cuda
