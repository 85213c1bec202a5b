// What sums over runs of edges read of consecutive edges: where their rows begin, and their weights as fp32.
//
// Both are made for many edges at once. Addresses and conversions are then vectors, and loads of weights that are
// scattered over the edge data overlap.
#pragma once

#include "buffer.h"
#include "columns.h"
#include "convert.h"
#include "rows.h"
#include "running_sum.h"

namespace halfgnn::HALFGNN_ISA {

// How many edges ahead of the sums a row is prefetched.
constexpr int64_t kRowsAhead = 16;

template <class T, class W, class I>
class EdgeWindow {
 public:
  // Rows of `len` elements are those of columns, or of edges. Weights, one per head, are multiplied by the scale of the
  // edge's column. Either may be absent.
  EdgeWindow(const Adjacency<I>& adj, const T* feat, int64_t len, bool by_edge, const W* weight,
             const InverseDegrees<float, I>& scale, int64_t heads)
      : adj_(adj),
        feat_(feat),
        len_(len),
        by_edge_(by_edge),
        weight_(weight),
        scale_(scale),
        heads_(heads),
        weights_(weighted() ? kEdges * heads : 0) {}

  // To be called before the edges [begin, begin + count) are read, count <= kRun. Calls go on from edge to edge.
  HALFGNN_INLINE void hold(int64_t begin, int64_t count) {
    if (begin + count > end_) fill(begin);
  }
  // Of the edge at a position that is held: its row, which kRowsAhead more follow, to be prefetched ...
  HALFGNN_INLINE const T* const* rows(int64_t position) const { return rows_ + (position - begin_); }
  // ... and its weights, followed by those of the next edges. Null if neither weights nor scales are given.
  HALFGNN_INLINE const float* weights(int64_t position) const {
    if constexpr (sizeof(W) == sizeof(float)) {
      if (in_place()) return weight_ + position * heads_;
    }
    return weighted() ? weights_ + (position - begin_) * heads_ : nullptr;
  }

 private:
  static constexpr int64_t kEdges = 2 * kRun;
  static constexpr int64_t kWeightsAhead = 64;  // edges

  bool weighted() const { return weight_ || scale_; }
  // Whether weights are read in the order of memory, as they are.
  bool in_place() const { return weight_ && !scale_ && !adj_.edge_ids; }
  HALFGNN_NOINLINE void fill(int64_t begin) {
    begin_ = begin;
    end_ = begin + kEdges;
    fill_rows();
    if (weighted()) with_columns(heads_, [&](auto heads) { fill_weights(heads); });
  }
  void fill_rows() {
    const int64_t left = adj_.num_edges - begin_, wanted = kEdges + kRowsAhead, n = left < wanted ? left : wanted;
    const I* ids = by_edge_ ? adj_.edge_ids : adj_.indices;
    if (ids) {
      for (int64_t k = 0; k < n; ++k) rows_[k] = feat_ + static_cast<int64_t>(ids[begin_ + k]) * len_;
    } else {
      for (int64_t k = 0; k < n; ++k) rows_[k] = feat_ + (begin_ + k) * len_;
    }
    for (int64_t k = n; k < wanted; ++k) rows_[k] = feat_;
  }
  template <class Heads>
  void fill_weights(Heads columns) {
    const int64_t left = adj_.num_edges - begin_, n = left < kEdges ? left : kEdges, heads = columns.count();
    const int64_t bytes = heads * static_cast<int64_t>(sizeof(W));
    if (in_place()) {
      if (adj_.has(begin_ + 2 * kEdges))
        for (int64_t i = 0; i < kEdges * bytes; i += 64) prefetch_edge(weight_, 1, (begin_ + kEdges) * bytes + i);
      if (sizeof(W) < sizeof(float)) decode_row(weight_ + begin_ * heads, n * heads, weights_.get());
      return;
    }
    for (int64_t k = 0; k < n; ++k) {
      const int64_t p = begin_ + k, ahead = p + kWeightsAhead;
      if (weight_ && adj_.has(ahead)) prefetch_edge(weight_, adj_.edge_id(ahead), bytes);
      load_weights(weight_, scale_, weight_ ? adj_.edge_id(p) : 0, scale_ ? adj_.column(p) : 0, heads,
                   weights_ + k * heads);
    }
  }

  const Adjacency<I> adj_;
  const T* const feat_;
  const int64_t len_;
  const bool by_edge_;
  const W* const weight_;
  const InverseDegrees<float, I> scale_;
  const int64_t heads_;
  int64_t begin_ = 0, end_ = 0;
  const T* rows_[kEdges + kRowsAhead];
  Buffer<float> weights_;
};

}  // namespace halfgnn::HALFGNN_ISA
