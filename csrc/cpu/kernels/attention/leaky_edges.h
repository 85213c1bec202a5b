// What edges add to GATv2: rows inside the LeakyReLU, given or projected from a few columns, and a bias. Rows exist for
// the edges of a tile alone.
#pragma once

#include "pair_edges.h"

namespace halfgnn::HALFGNN_ISA {

// ---- products of a tile's columns (edges, columns) and a weight (columns, stride), which has a whole number of
// vectors

// out[k] = columns of edge k times N vectors of the weight, for K edges
template <class E, int K, int N>
HALFGNN_INLINE void project_block(int64_t columns, const typename E::Acc* rows, int64_t width,
                                  const typename E::Acc* weight, int64_t stride, typename E::Acc* out) {
  typename E::V sum[K][N] = {};
  for (int64_t c = 0; c < columns; ++c) {
    typename E::V w[N];
    for (int n = 0; n < N; ++n) w[n] = E::load_acc(weight + c * stride + n * E::kWidth);
    for (int k = 0; k < K; ++k) {
      const auto x = E::weight(rows[k * width + c]);
      for (int n = 0; n < N; ++n) sum[k][n] = multiply_add(x, w[n], sum[k][n]);
    }
  }
  for (int k = 0; k < K; ++k)
    for (int n = 0; n < N; ++n) E::store_acc(sum[k][n], out + k * stride + n * E::kWidth);
}
template <class Acc>
HALFGNN_NOINLINE void project_columns(int64_t edges, int64_t columns, const Acc* rows, int64_t width, const Acc* weight,
                                      TileRows<Acc> out) {
  using E = EntryBlock<Acc>;
  const int64_t stride = out.stride;
  in_batches<E::kEdges>(0, edges, [&](int64_t e, auto count) {
    constexpr int K = decltype(count)::value;
    int64_t i = 0;
    for (; i + 2 * E::kWidth <= stride; i += 2 * E::kWidth)
      project_block<E, K, 2>(columns, rows + e * width, width, weight + i, stride, out.data + e * stride + i);
    if (i < stride)
      project_block<E, K, 1>(columns, rows + e * width, width, weight + i, stride, out.data + e * stride + i);
  });
}

// out[k][c] = <rows of edge k, row c of the weight> for K edges and N columns
template <class E, int K, int N>
HALFGNN_INLINE void gather_block(TileRows<typename E::Acc> rows, const typename E::Acc* weight, typename E::Acc* out,
                                 int64_t width) {
  typename E::V sum[N][K] = {};
  for (int64_t i = 0; i < rows.stride; i += E::kWidth) {
    typename E::V x[K];
    for (int k = 0; k < K; ++k) x[k] = E::load_acc(rows.data + k * rows.stride + i);
    for (int n = 0; n < N; ++n) {
      const typename E::V w = E::load_acc(weight + n * rows.stride + i);
      for (int k = 0; k < K; ++k) sum[n][k] = multiply_add(w, x[k], sum[n][k]);
    }
  }
  for (int n = 0; n < N; ++n) store_lane_sums<E, K>(sum[n], out + n, width);
}
// out (edges, width) = rows times the transposed weight
template <class Acc>
HALFGNN_NOINLINE void project_back(int64_t edges, int64_t columns, TileRows<Acc> rows, const Acc* weight, Acc* out,
                                   int64_t width) {
  using E = EntryBlock<Acc>;
  in_batches<E::kEdges>(0, edges, [&](int64_t e, auto count) {
    constexpr int K = decltype(count)::value;
    const TileRows<Acc> of_edges{rows.data + e * rows.stride, rows.stride};
    int64_t c = 0;
    for (; c + 2 <= columns; c += 2)
      gather_block<E, K, 2>(of_edges, weight + c * rows.stride, out + e * width + c, width);
    if (c < columns) gather_block<E, K, 1>(of_edges, weight + c * rows.stride, out + e * width + c, width);
  });
}

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
template <class Acc>
HALFGNN_NOINLINE void add_outer(int64_t edges, int64_t columns, const Acc* feat, int64_t width, TileRows<Acc> rows,
                                RunningSum<Acc>* sum) {
  using E = EntryBlock<Acc>;
  for (int64_t e = 0; e < edges;) {
    const int64_t left = sum->left_in_run(), end = edges - e < left ? edges : e + left;
    int64_t c = 0;
    for (; c + 4 <= columns; c += 4) outer_columns<E, 4>(e, end, feat + c, width, rows, sum->sum() + c * rows.stride);
    for (; c < columns; ++c) outer_columns<E, 1>(e, end, feat + c, width, rows, sum->sum() + c * rows.stride);
    sum->added(end - e);
    e = end;
  }
}

// ---- the policy

// For the edges [first, last), with d_e the derivative of the logit by own without attn, and dl: sum += dl_e d_e,
// attn_sum += dl_e d_e x_e, and x_e = dl_e d_e attn, the gradient of x_e.
template <class B>
HALFGNN_NOINLINE void derive_inside(const HeadBlocks<B>& blocks, const LeakyScore<B>& score, const EdgeTile& tile,
                                    const typename B::Element* feat, int64_t first, int64_t last,
                                    const typename B::Acc* own, const typename B::Acc* dl, TileRows<typename B::Acc> x,
                                    RunningSum<typename B::Acc>* sums, RunningSum<typename B::Acc>* attn_sums) {
  using V = typename B::V;
  in_batches<B::kEdges>(first, last, [&](int64_t e, auto count) {
    constexpr int kCount = decltype(count)::value;
    typename B::Acc *sum = sums->sum(), *attn_sum = attn_sums->sum();
    const typename B::Element* rows[kCount];
    gather_rows<kCount>(tile, feat, blocks.len(), false, e, rows);
    for (int64_t h = 0; h < blocks.heads; ++h) {
      typename LeakyScore<B>::Factor factor[kCount];
      for (int k = 0; k < kCount; ++k) factor[k] = score.factor(dl[(e + k) * blocks.heads + h]);
      for (int64_t b = 0; b < blocks.per_head; ++b) {
        const int64_t slot = blocks.slot(h, b), offset = blocks.offset(h, b);
        const V z = B::load_acc(own + slot), attn = B::load_acc(score.attn + slot);
        V total = B::load_acc(sum + slot), attn_total = B::load_acc(attn_sum + slot);
        for (int k = 0; k < kCount; ++k) {
          typename B::Acc* inside = x.data + (e + k) * x.stride + slot;
          const V own_x = B::load_acc(inside);
          const V term = score.add_derivative(factor[k], z, add(B::load(rows[k] + offset), own_x), V{});
          total = add(total, term);
          attn_total = multiply_add(term, own_x, attn_total);
          B::store_acc(multiply(attn, term), inside);
        }
        B::store_acc(total, sum + slot);
        B::store_acc(attn_total, attn_sum + slot);
      }
    }
    sums->added(kCount);
    attn_sums->added(kCount);
  });
}

template <class B>
class LeakyEdges : public EdgeEntries<B> {
  using Base = EdgeEntries<B>;
  using Base::blocks_;
  using Base::terms_;
  using typename Base::Acc;
  using typename Base::T;
  using E = EntryBlock<Acc>;

 public:
  LeakyEdges(const HeadBlocks<B>& blocks, const PairPass& pass, const EdgeTile& tile)
      : Base(blocks, pass),
        partial_weight_(static_cast<Acc*>(pass.partial_weight)),
        stride_((blocks.workspace() + E::kWidth - 1) / E::kWidth * E::kWidth),
        columns_(terms_.weight ? terms_.feat_dim : 0),
        feat_(terms_.weight ? terms_.feat : nullptr, pass.type, columns_, tile),
        inside_(has_rows() ? tile.max_rows() * stride_ : 0),
        weight_(columns_ * stride_),
        unique_(terms_.grad_feat ? columns_ * stride_ : 0),
        gradient_(terms_.grad_feat ? tile.max_rows() * columns_ : 0),
        weight_sum_(partial_weight_ ? columns_ * stride_ : 0) {
    if (has_rows() && stride_ > blocks.workspace())
      for (int64_t i = 0; i < tile.max_rows() * stride_; ++i) inside_[i] = 0;
    if (columns_) load_weight();
    if (partial_weight_) weight_sum_.start();
  }
  static int64_t row_bytes(const PairPass& pass) {
    return pass.edge.key || pass.edge.weight ? pass.heads * pass.dim * static_cast<int64_t>(sizeof(Acc)) : 0;
  }
  // Whether anything is added inside the LeakyReLU.
  HALFGNN_INLINE bool has_rows() const { return terms_.key || terms_.weight; }
  TileRows<Acc> rows() const { return {inside_.get(), stride_}; }

  // Makes the rows of the tile's edges.
  HALFGNN_INLINE void load(const EdgeTile& tile) {
    if (terms_.weight) {
      feat_.load(tile);
      project_columns(tile.num_edges(), columns_, feat_.row(0), feat_.width(), weight_.get(), rows());
    } else if (terms_.key) {
      load_rows(tile);
    }
  }
  // Stores the gradients of the tile's edges, which rows() has.
  HALFGNN_INLINE void store_tile(const EdgeTile& tile) {
    const int64_t n = tile.num_edges();
    if (terms_.grad_key) {
      for (int64_t e = 0; e < n; ++e) {
        prefetch_row(static_cast<T*>(terms_.grad_key) + tile.edge_id(e + kTileAhead / 2) * blocks_.len(),
                     blocks_.len());
        store_sums(blocks_, inside_ + e * stride_, static_cast<T*>(terms_.grad_key) + tile.edge_id(e) * blocks_.len());
      }
    }
    if (partial_weight_) add_outer(n, columns_, feat_.row(0), feat_.width(), rows(), &weight_sum_);
    if (terms_.grad_feat) {
      project_back(n, columns_, rows(), unique_.get(), gradient_.get(), columns_);
      const int64_t bytes = columns_ * size_of(feat_.type());
      for (int64_t e = 0; e < n; ++e) {
        prefetch_edge_for_write(terms_.grad_feat, tile.edge_id(e + kTileAhead), bytes);
        encode_heads(gradient_ + e * columns_, columns_, feat_.type(), terms_.grad_feat, tile.edge_id(e));
      }
    }
  }
  // The share of the gradient of weight.
  HALFGNN_NOINLINE void store_weight() {
    if (!partial_weight_) return;
    const Acc* sums = weight_sum_.finish();
    Buffer<Acc> row(blocks_.len());
    for (int64_t c = 0; c < columns_; ++c) {
      store_sums(blocks_, sums + c * stride_, row.get());
      for (int64_t i = 0; i < blocks_.len(); ++i) partial_weight_[i * columns_ + c] = row[i];
    }
  }

 private:
  HALFGNN_NOINLINE void load_rows(const EdgeTile& tile) {
    const T* key = static_cast<const T*>(terms_.key);
    for (int64_t e = 0; e < tile.num_edges(); ++e) {
      prefetch_row(key + tile.edge_id(e + kTileAhead) * blocks_.len(), blocks_.len());
      load_own(blocks_, key + tile.edge_id(e) * blocks_.len(), inside_ + e * stride_);
    }
  }
  // The weight by columns, laid out like rows of sums; in unique_ without the elements that a last block repeats.
  HALFGNN_NOINLINE void load_weight() {
    const T* weight = static_cast<const T*>(terms_.weight);
    Buffer<T> row(blocks_.len());
    for (int64_t c = 0; c < columns_; ++c) {
      Acc* out = weight_ + c * stride_;
      for (int64_t i = 0; i < stride_; ++i) out[i] = 0;
      for (int64_t i = 0; i < blocks_.len(); ++i) row[i] = weight[i * columns_ + c];
      load_own(blocks_, row.get(), out);
      if (!terms_.grad_feat) continue;
      Acc* unique = unique_ + c * stride_;
      for (int64_t i = 0; i < stride_; ++i) unique[i] = out[i];
      for (int64_t h = 0; h < blocks_.heads; ++h)
        for (int64_t b = blocks_.whole; b < blocks_.per_head; ++b) {
          Acc* slot = unique + blocks_.slot(h, b);
          B::store_acc(keep(B::load_acc(slot), blocks_.mask), slot);
        }
    }
  }

  Acc* partial_weight_;
  int64_t stride_, columns_;
  EdgeFeatures<Acc> feat_;
  Buffer<Acc> inside_;           // rows of the tile's edges; then their gradients
  Buffer<Acc> weight_, unique_;  // (columns, stride)
  Buffer<Acc> gradient_;         // of the tile's features
  RunningSum<Acc> weight_sum_;
};

}  // namespace halfgnn::HALFGNN_ISA
