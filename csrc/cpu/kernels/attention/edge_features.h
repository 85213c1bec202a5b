// Features of edges that all heads of an attention share: a few numbers per edge, widened once per tile.
//
// A head meets them in dots with a row's own numbers, and in sums weighted by numbers of entries. Rows are padded with
// zeros to whole vectors.
#pragma once

#include "entries.h"
#include "features.h"

namespace halfgnn::HALFGNN_ISA {

template <class Acc>
class EdgeFeatures {
  using E = EntryBlock<Acc>;
  using V = typename E::V;

 public:
  // `feat` may be null: there are none.
  EdgeFeatures(const void* feat, DType type, int64_t dim, const EdgeTile& tile)
      : feat_{feat, type, dim, 0, Target::kEdge},
        heads_(tile.heads),
        width_((dim + E::kWidth - 1) / E::kWidth * E::kWidth),
        rows_(tile.max_rows() * width_),
        line_(width_) {
    for (int64_t i = 0; i < tile.max_rows() * width_; ++i) rows_[i] = 0;
  }
  // How many values a row of numbers of all heads has.
  int64_t workspace() const { return heads_ * width_; }

  int64_t width() const { return width_; }
  DType type() const { return feat_.type; }
  // The features of an edge of the tile.
  const Acc* row(int64_t edge) const { return rows_ + edge * width_; }

  HALFGNN_NOINLINE void load(const EdgeTile& tile) {
    const int64_t bytes = feat_.len * size_of(feat_.type);
    for (int64_t e = 0; e < tile.num_edges(); ++e) {
      prefetch_edge(feat_.data, tile.edge_id(e + kNextTile), bytes);
      decode(feat_, tile.edge_id(e), rows_ + e * width_);
    }
  }
  // own = the numbers (heads, dim) of a row
  HALFGNN_NOINLINE void load_own(const Acc* numbers, Acc* own) const {
    for (int64_t h = 0; h < heads_; ++h)
      for (int64_t i = 0; i < width_; ++i) own[h * width_ + i] = i < feat_.len ? numbers[h * feat_.len + i] : Acc(0);
  }
  HALFGNN_NOINLINE void store_own(const Acc* own, const Acc* factor, Acc* numbers) const {
    for (int64_t h = 0; h < heads_; ++h)
      for (int64_t i = 0; i < feat_.len; ++i) numbers[h * feat_.len + i] = factor[h] * own[h * width_ + i];
  }

  // values += <own, features> for the edges [first, last)
  HALFGNN_NOINLINE void add_dots(int64_t first, int64_t last, const Acc* own, Acc* values) const {
    in_batches<E::kEdges>(first, last, [&](int64_t e, auto count) {
      constexpr int kCount = decltype(count)::value;
      for (int64_t h = 0; h < heads_; ++h) {
        V sum[kCount] = {};
        for (int64_t i = 0; i < width_; i += E::kWidth) {
          const V x = E::load_acc(own + h * width_ + i);
          for (int k = 0; k < kCount; ++k) sum[k] = multiply_add(x, E::load_acc(rows_ + (e + k) * width_ + i), sum[k]);
        }
        Acc dots[kCount];
        store_lane_sums<E, kCount>(sum, dots, 1);
        for (int k = 0; k < kCount; ++k) values[(e + k) * heads_ + h] += dots[k];
      }
    });
  }
  // sum += weights * features for the edges [first, last)
  HALFGNN_NOINLINE void add_weighted(int64_t first, int64_t last, const Acc* weights, RunningSum<Acc>* sum) const {
    for (int64_t e = first; e < last;) {
      const int64_t left = sum->left_in_run(), end = last - e < left ? last : e + left;
      for (int64_t h = 0; h < heads_; ++h)
        for (int64_t i = 0; i < width_; i += E::kWidth) {
          Acc* slot = sum->sum() + h * width_ + i;
          V total = E::load_acc(slot);
          for (int64_t k = e; k < end; ++k)
            total = multiply_add(E::weight(weights[k * heads_ + h]), E::load_acc(rows_ + k * width_ + i), total);
          E::store_acc(total, slot);
        }
      sum->added(end - e);
      e = end;
    }
  }
  // out[edge] = the sum over heads of x_weights own_x + y_weights own_y, for the edges [first, last)
  HALFGNN_NOINLINE void store_gradient(const EdgeTile& tile, int64_t first, int64_t last, const Acc* x_weights,
                                       const Acc* own_x, const Acc* y_weights, const Acc* own_y, void* out) {
    const int64_t bytes = feat_.len * size_of(feat_.type);
    for (int64_t e = first; e < last; ++e) {
      for (int64_t i = 0; i < width_; i += E::kWidth) {
        V sum = {};
        for (int64_t h = 0; h < heads_; ++h) {
          sum = multiply_add(E::weight(x_weights[e * heads_ + h]), E::load_acc(own_x + h * width_ + i), sum);
          sum = multiply_add(E::weight(y_weights[e * heads_ + h]), E::load_acc(own_y + h * width_ + i), sum);
        }
        E::store_acc(sum, line_ + i);
      }
      prefetch_edge_for_write(out, tile.edge_id(e + kTileAhead), bytes);
      encode(line_.get(), feat_.len, feat_.type, out, tile.edge_id(e));
    }
  }

 private:
  const Operand feat_;
  int64_t heads_, width_;
  Buffer<Acc> rows_, line_;
};

}  // namespace halfgnn::HALFGNN_ISA
