// Sums of the partial rows that row-wise kernels leave in the workspace for long rows (see rows.cuh).
#pragma once

#include "rows.cuh"

namespace halfgnn::cuda {

// For every long row: out[row] = factor * sum over its slots of partial[slot], divided by the row's degree if
// divide_by_degree is set. partial: len fp32 values per slot; out: len values per row, of `out_type` (not fp64). Short
// rows are left alone.
struct CombineArgs {
  Rows rows;
  float* partial;  // overwritten
  int64_t len;
  float factor;
  bool divide_by_degree;
  void* out;
  DType out_type;
};

inline size_t partial_bytes(const Rows& rows, int64_t len) {
  return static_cast<size_t>(rows.num_slots * len) * sizeof(float);
}

// Added in fp64, in an order that depends on the row's slots alone. Launches nothing if no row can be long.
cudaError_t combine(const CombineArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
