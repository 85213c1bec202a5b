// Features of edges that all heads of an attention share: a few numbers per edge, widened once per tile.
//
// A head meets them in dots with a row's own numbers, and in sums weighted by numbers of entries. Rows are padded with
// zeros to whole vectors.
#pragma once

#include "entries.h"
#include "features.h"

namespace halfgnn::HALFGNN_ISA {

// sum (columns, stride) += columns times rows, added over the edges [first, last), for M columns and N vectors
template <class E, int M, int N>
HALFGNN_INLINE void outer_block(int64_t first, int64_t last, const typename E::Acc* columns, int64_t width,
                                TileRows<typename E::Acc> rows, typename E::Acc* sum) {
  typename E::V total[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) total[m][n] = E::load_acc(sum + m * rows.stride + n * E::kWidth);
  for (int64_t e = first; e < last; ++e) {
    typename E::V x[N];
    for (int n = 0; n < N; ++n) x[n] = E::load_acc(rows.data + e * rows.stride + n * E::kWidth);
    for (int m = 0; m < M; ++m) {
      const auto f = E::weight(columns[e * width + m]);
      for (int n = 0; n < N; ++n) total[m][n] = multiply_add(f, x[n], total[m][n]);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) E::store_acc(total[m][n], sum + m * rows.stride + n * E::kWidth);
}
template <class E, int M>
HALFGNN_INLINE void outer_columns(int64_t first, int64_t last, const typename E::Acc* columns, int64_t width,
                                  TileRows<typename E::Acc> rows, typename E::Acc* sum) {
  int64_t i = 0;
  for (; i + 2 * E::kWidth <= rows.stride; i += 2 * E::kWidth)
    outer_block<E, M, 2>(first, last, columns, width, {rows.data + i, rows.stride}, sum + i);
  if (i < rows.stride) outer_block<E, M, 1>(first, last, columns, width, {rows.data + i, rows.stride}, sum + i);
}
// ... for all columns and vectors, in the runs of `sum`
template <class Acc>
HALFGNN_NOINLINE void add_outer(int64_t first, int64_t last, int64_t columns, const Acc* feat, int64_t width,
                                TileRows<Acc> rows, RunningSum<Acc>* sum) {
  using E = EntryBlock<Acc>;
  for (int64_t e = first; e < last;) {
    const int64_t left = sum->left_in_run(), end = last - e < left ? last : e + left;
    int64_t c = 0;
    for (; c + 4 <= columns; c += 4) outer_columns<E, 4>(e, end, feat + c, width, rows, sum->sum() + c * rows.stride);
    for (; c < columns; ++c) outer_columns<E, 1>(e, end, feat + c, width, rows, sum->sum() + c * rows.stride);
    sum->added(end - e);
    e = end;
  }
}

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
        rows_((tile.max_rows() + kEdges) * width_),
        line_(width_) {
    for (int64_t i = 0; i < (tile.max_rows() + kEdges) * width_; ++i) rows_[i] = 0;
  }
  // How many values a row of numbers of all heads has.
  int64_t workspace() const { return heads_ * width_; }

  int64_t width() const { return width_; }
  DType type() const { return feat_.type; }
  // The features of an edge of the tile.
  const Acc* row(int64_t edge) const { return rows_ + edge * width_; }

  HALFGNN_NOINLINE void load(const EdgeTile& tile) {
    const int64_t len = feat_.len;
    with_type(feat_.type, [&](auto t) {
      using T = TypeOf<decltype(t)>;
      const T* feat = static_cast<const T*>(feat_.data);
      Acc* out = rows_;
      for (int64_t e = 0; e < tile.num_edges(); ++e, out += width_) {
        prefetch_edge(feat, tile.edge_id(e + kNextTile), len * static_cast<int64_t>(sizeof(T)));
        decode_row(feat + tile.edge_id(e) * len, len, out);
      }
    });
  }
  // own = the numbers (heads, dim) of a row
  HALFGNN_NOINLINE void load_own(const Acc* numbers, Acc* own) const {
    const int64_t len = feat_.len;
    for (int64_t h = 0; h < heads_; ++h, numbers += len, own += width_) {
      for (int64_t i = 0; i < len; ++i) own[i] = numbers[i];
      for (int64_t i = len; i < width_; ++i) own[i] = 0;
    }
  }
  HALFGNN_NOINLINE void store_own(const Acc* own, const Acc* factor, Acc* __restrict numbers) const {
    const int64_t len = feat_.len;
    for (int64_t h = 0; h < heads_; ++h, numbers += len, own += width_)
      for (int64_t i = 0; i < len; ++i) numbers[i] = factor[h] * own[i];
  }

  // values += <own, features> for the edges [first, last)
  HALFGNN_NOINLINE void add_dots(int64_t first, int64_t last, const Acc* own, Acc* values) const {
    const int64_t heads = heads_;
    for (int64_t e = first; e < last; e += kEdges) {
      const int64_t count = last - e < kEdges ? last - e : kEdges;
      int64_t h = 0;
      if constexpr (kEdges == 4) {
        for (; h + 4 <= heads; h += 4) {
          Acc dots[16];
          dot_four_heads(e, h, own, dots);
          for (int64_t k = 0; k < count; ++k)
            for (int i = 0; i < 4; ++i) values[(e + k) * heads + h + i] += dots[4 * k + i];
        }
      }
      for (; h < heads; ++h) {
        V sum[kEdges];
        Acc dots[kEdges];
        dot_rows(e, own + h * width_, sum);
        store_lane_sums<E, kEdges>(sum, dots, 1);
        for (int64_t k = 0; k < count; ++k) values[(e + k) * heads + h] += dots[k];
      }
    }
  }
  // sum += weights * features for the edges [first, last)
  HALFGNN_INLINE void add_weighted(int64_t first, int64_t last, const Acc* weights, RunningSum<Acc>* sum) const {
    add_outer(first, last, heads_, weights, heads_, {rows_.get(), width_}, sum);
  }
  // out[edge] = the sum over heads of x_weights own_x + y_weights own_y, for the edges [first, last)
  HALFGNN_NOINLINE void store_gradient(const EdgeTile& tile, int64_t first, int64_t last, const Acc* x_weights,
                                       const Acc* own_x, const Acc* y_weights, const Acc* own_y, void* out) {
    with_type(feat_.type, [&](auto t) {
      using T = TypeOf<decltype(t)>;
      if constexpr ((sizeof(T) == 8) == (sizeof(Acc) == 8))
        store_gradient_as(tile, first, last, x_weights, own_x, y_weights, own_y, static_cast<T*>(out));
    });
  }

 private:
  // Edges that are dotted together. A last batch may pass the row's end: those dots are dropped.
  static constexpr int kEdges = E::kEdges;

  // sum[k] = own times the features of edge e + k, whose lanes are then to be added
  HALFGNN_INLINE void dot_rows(int64_t e, const Acc* own, V* sum) const {
    for (int k = 0; k < kEdges; ++k) sum[k] = V{};
    for (int64_t i = 0; i < width_; i += E::kWidth) {
      const V x = E::load_acc(own + i);
      for (int k = 0; k < kEdges; ++k) sum[k] = multiply_add(x, E::load_acc(rows_ + (e + k) * width_ + i), sum[k]);
    }
  }
  // dots[4 * k + i]: of edge e + k and head h + i
  HALFGNN_INLINE void dot_four_heads(int64_t e, int64_t h, const Acc* own, Acc* dots) const {
    FourSums sums[4];
    for (int i = 0; i < 4; ++i) {
      V sum[4];
      dot_rows(e, own + (h + i) * width_, sum);
      sums[i] = add_four(sum);
    }
    store_sixteen_sums(sums, dots, 4);
  }
  template <class T>
  HALFGNN_INLINE void store_gradient_as(const EdgeTile& tile, int64_t first, int64_t last, const Acc* x_weights,
                                        const Acc* own_x, const Acc* y_weights, const Acc* own_y, T* out) {
    const int64_t len = feat_.len, heads = heads_, width = width_;
    Acc* line = line_;
    // A vector of the result, or two, whose weights are then loaded once.
    const auto add_heads = [&](int64_t e, int64_t i, auto vectors) {
      constexpr int N = decltype(vectors)::value;
      V sum[N] = {};
      for (int64_t h = 0; h < heads; ++h) {
        const auto x = E::weight(x_weights[e * heads + h]), y = E::weight(y_weights[e * heads + h]);
        for (int n = 0; n < N; ++n) {
          const int64_t at = h * width + i + n * E::kWidth;
          sum[n] = multiply_add(y, E::load_acc(own_y + at), multiply_add(x, E::load_acc(own_x + at), sum[n]));
        }
      }
      for (int n = 0; n < N; ++n) E::store_acc(sum[n], line + i + n * E::kWidth);
    };
    for (int64_t e = first; e < last; ++e) {
      int64_t i = 0;
      for (; i + 2 * E::kWidth <= width; i += 2 * E::kWidth) add_heads(e, i, Count<2>{});
      if (i < width) add_heads(e, i, Count<1>{});
      prefetch_edge_for_write(out, tile.edge_id(e + kTileAhead), len * static_cast<int64_t>(sizeof(T)));
      encode_row(line, len, out + tile.edge_id(e) * len);
    }
  }

  const Operand feat_;
  int64_t heads_, width_;
  Buffer<Acc> rows_, line_;
};

}  // namespace halfgnn::HALFGNN_ISA
