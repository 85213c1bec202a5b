// Which layout of heads (core/head_layout.h) a kernel takes.
#pragma once

#include <algorithm>

#include "../core/head_layout.h"
#include "slices.h"

namespace halfgnn::cuda {

// Heads of a number of vectors, of which each lane takes `repeat`.
struct HeadShape {
  int64_t heads, vectors;
  int repeat;
  int max_log2_groups;  // a warp has ids for so many groups of edges

  // As many heads in a warp as fit.
  int widest_log2_lanes() const { return log2_lanes_for(vectors, repeat); }
  int widest_log2_heads() const { return std::min(log2_ceil(heads), kLog2Warp - widest_log2_lanes()); }

  // Lanes past the last vector idle rather than take more edges than a warp has ids of.
  HeadLayout layout(int log2_lanes, int log2_heads, bool by_slice) const {
    HeadLayout layout{
        static_cast<int32_t>(heads), static_cast<int32_t>(vectors), log2_lanes, log2_heads, 1, 1, by_slice};
    layout.log2_lanes += std::max(0, layout.log2_groups() - max_log2_groups);
    layout.slices = static_cast<int32_t>(ceil_div(heads, int64_t{1} << log2_heads));
    layout.tiles = static_cast<int32_t>(ceil_div(vectors, int64_t{repeat} << layout.log2_lanes));
    return layout;
  }
  HeadLayout widest() const { return layout(widest_log2_lanes(), widest_log2_heads(), false); }
};

// ---- Whole heads: a warp walks the tiles of a head. Slices must fit in the cache, and save twice what they cost.

inline HeadLayout layout_of_whole_heads(const Device& device, const HeadShape& shape, const Gathered& gathered) {
  const RowCache cache(device, kCacheOfHeads);
  const HeadLayout widest = shape.widest();
  const auto bytes = [&](int log2_heads) { return gathered.rows * (gathered.row_bytes / shape.heads) << log2_heads; };
  int log2_heads = widest.log2_heads;
  while (log2_heads > 0 && !cache.holds(bytes(log2_heads))) --log2_heads;
  const HeadLayout sliced = shape.layout(widest.log2_lanes, log2_heads, true);
  const int64_t matrix_bytes = gathered.rows * gathered.row_bytes;
  if (sliced.slices == 1 || cache.holds(matrix_bytes) || !cache.holds(bytes(log2_heads))) return widest;

  const double edges = static_cast<double>(gathered.num_edges);
  const double missed = missed_bytes(cache, gathered, {widest.slices, gathered.row_bytes, false, 0, 0});
  const double swept = static_cast<double>(matrix_bytes) + static_cast<double>(sliced.slices * kHeadSliceBytes) * edges;
  return missed > kHeadSlicingGain * swept ? sliced : widest;
}

// ---- Heads and parts of heads, of GAT: tiles of a head are slices as well, which other warps take.

// What an edge reads from memory beside its row, for every slice.
struct PairStream {
  int64_t edge_bytes;  // ids
  int64_t head_bytes;  // logits, per head
};

inline Slices slices_of(const HeadLayout& layout, const Gathered& gathered, int64_t lane_bytes,
                        const PairStream& stream) {
  const int64_t heads = int64_t{1} << layout.log2_heads;
  const double edge_bytes = static_cast<double>(stream.edge_bytes + heads * stream.head_bytes);
  return {int64_t{layout.slices} * layout.tiles, lane_bytes << (layout.log2_lanes + layout.log2_heads), layout.by_slice,
          static_cast<double>(heads) * kPairBytes, static_cast<double>(gathered.num_edges) * edge_bytes};
}

// lane_bytes: of a row that a lane reads. whole_heads: heads are not cut, unless they are wider than a warp.
inline HeadLayout layout_of_parts(const Device& device, const HeadShape& shape, const Gathered& gathered,
                                  int64_t lane_bytes, const PairStream& stream, bool whole_heads) {
  const RowCache cache(device, kCacheOfSums);
  const auto slices = [&](const HeadLayout& layout) { return slices_of(layout, gathered, lane_bytes, stream); };
  const HeadLayout widest = shape.widest();
  Cheapest<HeadLayout> cheapest(widest, cost_of(cache, gathered, slices(widest)));
  int log2_lanes = shape.widest_log2_lanes(), log2_heads = shape.widest_log2_heads();
  while (log2_heads > 0 || (log2_lanes > 0 && !whole_heads)) {
    --(log2_heads > 0 ? log2_heads : log2_lanes);
    const HeadLayout layout = shape.layout(log2_lanes, log2_heads, true);
    if (slices(layout).bytes < kMinSliceBytes) break;
    cheapest.consider(layout, cost_of(cache, gathered, slices(layout)));
  }
  return cheapest.choice();
}

}  // namespace halfgnn::cuda
