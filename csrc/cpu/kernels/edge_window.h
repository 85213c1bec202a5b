// What sums over runs of edges read of consecutive edges: where their rows begin, and their weights as fp32.
//
// Both are made for many edges at once. Addresses and conversions are then vectors, and loads of weights that are
// scattered over the edge data overlap. The type of ids is asked for once per window.
#pragma once

#include "buffer.h"
#include "columns.h"
#include "convert.h"
#include "rows.h"
#include "running_sum.h"

namespace halfgnn::HALFGNN_ISA {

// How many edges ahead of the sums a row is prefetched.
constexpr int64_t kRowsAhead = 16;
// The edges of a window.
constexpr int64_t kWindowEdges = kHalfRun;

// Where the rows of consecutive edges begin.
template <class T>
class RowWindow {
 public:
  // Rows of `len` elements are those of columns, or of edges.
  RowWindow(const Adjacency& adj, const T* feat, int64_t len, bool by_edge)
      : ids_(by_edge ? adj.edge_ids : adj.indices), num_edges_(adj.num_edges), feat_(feat), len_(len) {}

  // To be called before the edges [begin, begin + count) are read, count <= kWindowEdges. Calls go on from edge to
  // edge.
  HALFGNN_INLINE void hold(int64_t begin, int64_t count) {
    if (begin + count > end_) fill(begin);
  }
  // The row of the edge at a position that is held, which kRowsAhead more follow, to be prefetched.
  HALFGNN_INLINE const T* const* rows(int64_t position) const { return rows_ + (position - begin_); }

 protected:
  HALFGNN_NOINLINE void fill(int64_t begin) {
    begin_ = begin;
    end_ = begin + kWindowEdges;
    const int64_t left = num_edges_ - begin, wanted = kWindowEdges + kRowsAhead, n = left < wanted ? left : wanted;
    if (ids_) {
      ids_.resolve([&](const auto* ids) {
        for (int64_t k = 0; k < n; ++k) rows_[k] = feat_ + static_cast<int64_t>(ids[begin + k]) * len_;
      });
    } else {
      for (int64_t k = 0; k < n; ++k) rows_[k] = feat_ + (begin + k) * len_;
    }
    for (int64_t k = n; k < wanted; ++k) rows_[k] = feat_;
  }

  int64_t begin_ = 0, end_ = 0;

 private:
  const Ids ids_;
  const int64_t num_edges_;
  const T* const feat_;
  const int64_t len_;
  const T* rows_[kWindowEdges + kRowsAhead];
};

// The weights of consecutive edges, one per head, multiplied by the scale of the edge's column. Either may be absent.
template <class W>
class EdgeWeights {
 public:
  EdgeWeights(const Adjacency& adj, const W* weight, const InverseDegrees<float>& scale, int64_t heads)
      : adj_(adj),
        weight_(weight),
        scale_(scale),
        heads_(heads),
        in_place_(weight && !scale && !adj.edge_ids),
        values_(weight || scale ? kWindowEdges * heads : 0) {}

  // Of the edges from `begin` on, a window of them.
  HALFGNN_NOINLINE void fill(int64_t begin) {
    if (!weight_ && !scale_) return;
    held_ = values_;
    with_columns(heads_, [&](auto heads) {
      if (in_place_) return decode_in_place(begin, heads.count());
      with_index(adj_.is_int64, [&](auto i) { gather<TypeOf<decltype(i)>>(begin, heads.count()); });
    });
  }
  // Of the edge `offset` edges after the begin, followed by those of the next edges. Null if neither weights nor scales
  // are given.
  HALFGNN_INLINE const float* from(int64_t offset) const { return held_ ? held_ + offset * heads_ : nullptr; }

 private:
  static constexpr int64_t kWeightsAhead = 64;  // edges

  HALFGNN_INLINE void decode_in_place(int64_t begin, int64_t heads) {
    const int64_t left = adj_.num_edges - begin, n = left < kWindowEdges ? left : kWindowEdges;
    const int64_t bytes = heads * static_cast<int64_t>(sizeof(W));
    if (adj_.has(begin + 2 * kWindowEdges))
      for (int64_t i = 0; i < kWindowEdges * bytes; i += 64)
        prefetch_edge(weight_, 1, (begin + kWindowEdges) * bytes + i);
    if constexpr (sizeof(W) == sizeof(float)) {
      held_ = weight_ + begin * heads;
    } else {
      decode_row(weight_ + begin * heads, n * heads, values_.get());
    }
  }
  template <class I>
  HALFGNN_INLINE void gather(int64_t begin, int64_t heads) {
    const I *edge_ids = adj_.edge_ids.as<I>(), *indices = adj_.indices.as<I>(), *indptr = scale_.indptr.as<I>();
    const W* const weight = weight_;
    float* out = values_;
    const int64_t num_edges = adj_.num_edges, left = num_edges - begin;
    const int64_t end = begin + (left < kWindowEdges ? left : kWindowEdges);
    const auto row = [=](int64_t p) { return edge_ids ? static_cast<int64_t>(edge_ids[p]) : p; };
    for (int64_t p = begin; p < end; ++p, out += heads) {
      if (weight && p + kWeightsAhead < num_edges)
        prefetch_edge(weight, row(p + kWeightsAhead), heads * static_cast<int64_t>(sizeof(W)));
      const float scale = indptr ? inverse_degree<float>(indptr, indices ? indices[p] : 0) : 1.f;
      if (weight) {
        const W* own = weight + row(p) * heads;
        for (int64_t h = 0; h < heads; ++h) out[h] = scale * to_float(own[h]);
      } else {
        for (int64_t h = 0; h < heads; ++h) out[h] = scale;
      }
    }
  }

  const Adjacency adj_;
  const W* const weight_;
  const InverseDegrees<float> scale_;
  const int64_t heads_;
  const bool in_place_;  // whether weights are read in the order of memory, as they are
  const float* held_ = nullptr;
  Buffer<float> values_;
};

// Both.
template <class T, class W>
class EdgeWindow : public RowWindow<T> {
 public:
  EdgeWindow(const Adjacency& adj, const T* feat, int64_t len, bool by_edge, const W* weight,
             const InverseDegrees<float>& scale, int64_t heads)
      : RowWindow<T>(adj, feat, len, by_edge), weights_(adj, weight, scale, heads) {}
  HALFGNN_INLINE void hold(int64_t begin, int64_t count) {
    if (begin + count > this->end_) fill(begin);
  }
  HALFGNN_INLINE const float* weights(int64_t position) const { return weights_.from(position - this->begin_); }

 private:
  HALFGNN_NOINLINE void fill(int64_t begin) {
    RowWindow<T>::fill(begin);
    weights_.fill(begin);
  }
  EdgeWeights<W> weights_;
};

}  // namespace halfgnn::HALFGNN_ISA
