// Which of the layouts of heads.cuh a kernel takes. On hosts only.
#pragma once

#include "../core/heads.cuh"
#include "device.h"

namespace halfgnn::cuda {

// The layout for `kRepeat` vectors a lane that takes at most 2^max_log2_groups edges at once. `gathered` says what is
// read at random: a slice of it should fit in the L2 cache where sweeping it once a slice is cheaper than missing.
struct Gathered {
  int64_t rows;
  int64_t row_bytes;
  int64_t num_edges;
};
inline HeadLayout layout_of(int64_t heads, int64_t vectors, int repeat, int max_log2_groups, const Gathered& gathered) {
  HeadLayout layout{static_cast<int32_t>(heads), static_cast<int32_t>(vectors), 0, 0, 1, 1, false};
  while (layout.log2_lanes < 5 && (int64_t{repeat} << layout.log2_lanes) < vectors) ++layout.log2_lanes;
  layout.tiles = static_cast<int32_t>(ceil_div(vectors, int64_t{repeat} << layout.log2_lanes));
  const int padded = log2_ceil(heads), room = 5 - layout.log2_lanes;
  layout.log2_heads = padded < room ? padded : room;
  layout.slices = static_cast<int32_t>(ceil_div(heads, int64_t{1} << layout.log2_heads));

  // What a slice costs beside the gathers: ids of the edges, and results that fill a part of a sector.
  constexpr int64_t kSliceBytesAnEdge = 40;
  const int64_t cache = l2_cache_bytes() * 3 / 4, matrix = gathered.rows * gathered.row_bytes;
  int log2_heads = layout.log2_heads;
  while (log2_heads > 0 && (gathered.rows * (gathered.row_bytes / heads) << log2_heads) > cache) --log2_heads;
  const int64_t slices = ceil_div(heads, int64_t{1} << log2_heads);
  if (slices > 1 && matrix > cache && (gathered.rows * (gathered.row_bytes / heads) << log2_heads) <= cache) {
    const double misses = static_cast<double>(gathered.num_edges) * static_cast<double>(gathered.row_bytes) *
                          (1. - static_cast<double>(cache) / static_cast<double>(matrix));
    const double swept =
        static_cast<double>(matrix) + static_cast<double>(slices * kSliceBytesAnEdge) * gathered.num_edges;
    layout.by_slice = misses > 2. * swept;
  }
  if (layout.by_slice) {
    layout.log2_heads = log2_heads;
    layout.slices = static_cast<int32_t>(slices);
  }
  // Lanes past the last vector idle rather than take more edges than a warp has ids of.
  while (layout.log2_groups() > max_log2_groups) ++layout.log2_lanes;
  return layout;
}

}  // namespace halfgnn::cuda
