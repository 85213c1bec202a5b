// How edge-wise kernels divide the edge array: the run of positions that a warp takes and, without broadcasting, the
// slices of columns that are swept one after the other.
#pragma once

#include <algorithm>

#include "slices.h"

namespace halfgnn::cuda {

// ---- Dots: about kManyWarps runs, of whole chunks of 32 positions.

inline int64_t dot_run(int64_t num_edges, int64_t slices) {
  const int64_t edges = std::min(ceil_div(num_edges * slices, kManyWarps), kMaxRunEdges);
  return ceil_div(edges, kWarpSize) * kWarpSize;
}

// ---- Operators without broadcasting.

// The widest slice of rows of row_vectors that fits in the cache, or whole rows if none does.
inline int64_t slice_vectors_of(const Device& device, const Gathered& gathered, int64_t row_vectors,
                                int64_t vector_bytes) {
  const int64_t widest = std::min(row_vectors, kMaxSliceVectors);
  if (gathered.rows == 0 || gathered.num_edges < kMinReads * gathered.rows) return widest;
  const RowCache cache(device, kCacheOfElementwise);
  const auto fits = [&](int64_t vectors) { return cache.holds(gathered.rows * vectors * vector_bytes); };
  const int64_t narrowest = ceil_div(kMinElementwiseBytes, vector_bytes);
  if (fits(widest) || !fits(narrowest)) return widest;
  int64_t slice = widest;
  while (slice > narrowest && !fits(slice)) slice = ceil_div(slice, 2);
  return std::min(ceil_div(slice, narrowest) * narrowest, row_vectors);
}

inline int64_t elementwise_run(int64_t num_edges, int64_t slice_vectors) {
  int64_t edges = kWarpSize;
  while (edges < kMaxRunEdges && num_edges / edges > kManyWarps && edges * slice_vectors < kMaxRunPairs) edges *= 2;
  return edges;
}

}  // namespace halfgnn::cuda
