// The results of long rows from what row-wise kernels leave in the workspace for their pieces (see rows.cuh).
#pragma once

#include "../core/rows.cuh"

namespace halfgnn::cuda {

// Null: not wanted.
struct ReductionsOut {
  Ids edge_ids;
  DType type;  // of the next six
  void* sum;
  void* mean;
  void* max;
  void* min;
  void* var;
  void* std;
  int32_t* arg_max;
  int32_t* arg_min;
  float* kept_mean;
  float* kept_std;
  float eps;
};

// Of each slot and element; overwritten when they are combined. `shift` is the value from which distances are summed,
// and their squares.
struct PartialReductions {
  float* sum;
  float* shift;
  float* distance;
  float* squares;
  int64_t* max;  // keys: extrema.cuh
  int64_t* min;

  static size_t bytes(int64_t count) { return static_cast<size_t>(count) * (4 * sizeof(float) + 2 * sizeof(int64_t)); }
  // In a workspace of so many bytes.
  static PartialReductions in(void* workspace, int64_t count) {
    auto* keys = static_cast<int64_t*>(workspace);
    auto* floats = reinterpret_cast<float*>(keys + 2 * count);
    return {floats, floats + count, floats + 2 * count, floats + 3 * count, keys, keys + count};
  }
};

struct CombineReductionsArgs {
  Rows rows;
  PartialReductions partial;
  int64_t len;
  bool has_sums;
  bool has_extrema;
  ReductionsOut out;
};

// Short rows are left alone. Launches nothing if no row can be long.
cudaError_t combine_reductions(const CombineReductionsArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
