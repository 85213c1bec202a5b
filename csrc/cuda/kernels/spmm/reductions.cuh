// How several reductions are finished and stored: by the kernel of short rows, and by that of long ones.
#pragma once

#include "combine_reductions.h"
#include "extrema.cuh"
#include "spmm.cuh"

namespace halfgnn::cuda {

// The root of a number that is not negative, rounded correctly: the error of a quick one is worked out and taken off.
inline __device__ float root(float x) {
  const float inverse = rsqrtf(x), near = x * inverse;
  const float exact = fmaf(fmaf(-near, near, x), 0.5f * inverse, near);
  return fabsf(exact) <= FLT_MAX ? exact : x;  // inf, nan
}

// nan stays nan.
inline __device__ float std_of(float var, float eps) { return var <= eps ? 0.f : root(var); }

// Elements i ... of the maxima and minima, and of their edges' ids, of edges whose positions are given. A row without
// edges has 0 and -1.
template <int kCount>
__device__ void store_winners(const ReductionsOut& out, int64_t i, bool has_edges, const Winner (&max)[kCount],
                              const Winner (&min)[kCount]) {
  const auto store = [&](const auto& winner_of, void* values_out, int32_t* ids_out) {
    if (values_out == nullptr) return;
    float values[kCount];
    uint32_t ids[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const Winner winner = winner_of(k);
      values[k] = has_edges ? winner.value : 0.f;
      ids[k] = winner.offset;
    }
    store_rounded_as(values_out, out.type, i, values);
    if (ids_out == nullptr) return;
    if (has_edges) out.edge_ids.look_up(ids);
#pragma unroll
    for (int k = 0; k < kCount; ++k) ids[k] = has_edges ? ids[k] : ~0u;
    store_words(reinterpret_cast<uint32_t*>(ids_out) + i, ids);
  };
  store([&](int k) { return max[k]; }, out.max, out.arg_max);
  store([&](int k) { return max[k].value == max[k].value ? min[k] : max[k]; }, out.min, out.arg_min);
}

}  // namespace halfgnn::cuda
