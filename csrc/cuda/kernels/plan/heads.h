// Which layout of heads (core/head_layout.h) a kernel takes.
#pragma once

#include <algorithm>

#include "../core/head_layout.h"
#include "slices.h"
#include "teams.h"

namespace halfgnn::cuda {

// Heads of a number of vectors, of which each lane takes `repeat`.
struct HeadShape {
  int64_t heads, vectors;
  int repeat;
  int max_log2_groups;       // a warp has ids for so many groups of edges
  int least_log2_lanes = 0;  // of a head

  // As many heads in a warp as fit.
  int widest_log2_lanes() const { return std::max(least_log2_lanes, log2_lanes_for(vectors, repeat)); }
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

// What a kernel does for every slice, beside reading rows.
struct HeadStream {
  int64_t num_rows;
  RowWork work;
  int64_t edge_bytes;            // that an edge reads from memory
  int64_t head_bytes = 0;        // that an edge reads from memory, per head
  int64_t logit_bytes = 0;       // per node and head; an edge reads those of a slice, in whole sectors
  double pair_instructions = 0;  // per edge and head
};

// The choice among layouts of narrower and narrower slices.
class HeadPlanner {
 public:
  // lane_bytes: of a row that a lane reads. cuts_heads: the tiles of a head are slices too, which other warps take.
  // Otherwise a warp walks the tiles of its heads.
  HeadPlanner(const Device& device, const HeadShape& shape, const Gathered& gathered, int64_t lane_bytes,
              const HeadStream& stream, bool cuts_heads)
      : device_(device),
        shape_(shape),
        gathered_(gathered),
        lane_bytes_(lane_bytes),
        stream_(stream),
        cuts_heads_(cuts_heads) {}

  // least_log2_lanes: of a head.
  HeadLayout choose(int least_log2_lanes) const {
    const HeadLayout widest = shape_.widest();
    Fastest<HeadLayout> fastest(widest, time_of(widest));
    int log2_lanes = shape_.widest_log2_lanes(), log2_heads = shape_.widest_log2_heads();
    for (;;) {
      const HeadLayout layout = shape_.layout(log2_lanes, log2_heads, true);
      const Slices slices = slices_of(layout);
      if (slices.count > 1 && slices.bytes < kMinSliceBytes) break;
      if (slices.count > 1) fastest.consider(layout, time_of(layout));
      if (log2_heads == 0 && log2_lanes <= least_log2_lanes) break;
      --(log2_heads > 0 ? log2_heads : log2_lanes);
    }
    return fastest.choice();
  }

  // Without node_bytes: no GPU has run the two slices of GAT's 8 x 16 on reddit-size that would then be chosen on an
  // H200, and one took no longer than its bound (docs/tuning.md).
  Slices slices_of(const HeadLayout& layout) const {
    const int64_t heads = int64_t{1} << layout.log2_heads, tiles = cuts_heads_ ? 1 : layout.tiles;
    const int log2_unroll = kLog2Warp - shape_.max_log2_groups;
    // An edge may read two rows.
    const int64_t accesses = tiles * std::max(int64_t{shape_.repeat}, lane_bytes_ / kAccessBytes);
    const RowWalk walk = walk_of(stream_.work.sharing, stream_.num_rows, gathered_.num_edges,
                                 {kLog2Warp - layout.log2_groups(), 1 << log2_unroll, accesses});
    const double edges = static_cast<double>(gathered_.num_edges), pairs = edges * static_cast<double>(heads);
    return {int64_t{layout.slices} * (cuts_heads_ ? layout.tiles : 1),
            (tiles * lane_bytes_) << (layout.log2_lanes + layout.log2_heads),
            layout.by_slice,
            static_cast<double>(ceil_div(heads * stream_.logit_bytes, kSectorBytes) * kSectorBytes),
            edges * static_cast<double>(stream_.edge_bytes + heads * stream_.head_bytes),
            instructions_of(stream_.work, walk) + pairs * stream_.pair_instructions};
  }

 private:
  double time_of(const HeadLayout& layout) const { return times_of(device_, gathered_, slices_of(layout), 0).total(); }

  const Device& device_;
  const HeadShape& shape_;
  const Gathered& gathered_;
  int64_t lane_bytes_;
  const HeadStream& stream_;
  bool cuts_heads_;
};

// Whole heads: a warp walks the tiles of a head.
inline HeadLayout layout_of_whole_heads(const Device& device, const HeadShape& shape, const Gathered& gathered,
                                        int64_t num_rows, const RowWork& work) {
  const int64_t lane_bytes = gathered.row_bytes / (shape.heads * shape.vectors) * shape.repeat;
  const HeadStream stream{num_rows, work, kHeadSliceBytes};
  return HeadPlanner(device, shape, gathered, lane_bytes, stream, false).choose(shape.widest_log2_lanes());
}

// Heads and parts of heads, of GAT. whole_heads: heads are not cut, unless they are wider than a warp.
inline HeadLayout layout_of_parts(const Device& device, const HeadShape& shape, const Gathered& gathered,
                                  int64_t lane_bytes, const HeadStream& stream, bool whole_heads) {
  return HeadPlanner(device, shape, gathered, lane_bytes, stream, true)
      .choose(whole_heads ? shape.widest_log2_lanes() : 0);
}

}  // namespace halfgnn::cuda
