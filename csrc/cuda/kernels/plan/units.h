// How edge-wise kernels divide the edge array: the unit, positions that a warp takes and, without broadcasting, the
// slices of columns that are swept one after the other. And how copies of rows by id divide theirs.
#pragma once

#include <algorithm>

#include "slices.h"

namespace halfgnn::cuda {

// ---- Dots: about many_warps() units, of whole chunks of 32 positions.

inline int64_t dot_unit_edges(const Device& device, int64_t num_edges, int64_t slices) {
  const int64_t edges = std::min(ceil_div(num_edges * slices, many_warps(device)), kMaxUnitEdges);
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

inline int64_t elementwise_unit_edges(const Device& device, int64_t num_edges, int64_t slice_vectors) {
  const int64_t warps = many_warps(device);
  int64_t edges = kWarpSize;
  while (edges < kMaxUnitEdges && num_edges / edges > warps && edges * slice_vectors < kMaxUnitPairs) edges *= 2;
  return edges;
}

// ---- Terms, and copies of rows.

// Chunks of 32 edges per warp.
inline int term_chunks(int64_t num_edges) {
  int chunks = 1;
  while (chunks < kMaxTermChunks && ceil_div(num_edges, int64_t{kWarpSize} * chunks) > kManyTermWarps) chunks *= 2;
  return chunks;
}

// Of a number of batches, those per warp.
inline int copy_batches(int64_t num_batches) {
  return static_cast<int>(std::clamp(num_batches / kManyCopyWarps, int64_t{1}, kMaxCopyBatches));
}

}  // namespace halfgnn::cuda
