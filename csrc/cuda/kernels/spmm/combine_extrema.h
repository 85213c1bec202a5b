// The best of the partial maxima or minima that row-wise kernels leave in the workspace for long rows (see rows.cuh).
#pragma once

#include "../core/rows.cuh"
#include "extremum.cuh"

namespace halfgnn::cuda {

// Of each slot and element, a value (negated for a minimum) and the position of its edge.
struct CombineExtremaArgs {
  Rows rows;
  float* partial;  // both are overwritten
  uint32_t* partial_position;
  int64_t len;
  ExtremumOut result;
};

// Short rows are left alone. Launches nothing if no row can be long.
cudaError_t combine_extrema(const CombineExtremaArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
