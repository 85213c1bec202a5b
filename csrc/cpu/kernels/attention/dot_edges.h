// What edges add to dot attention: rows of keys and of values, columns that all heads share, and a bias.
#pragma once

#include "edge_features.h"
#include "pair_edges.h"

namespace halfgnn::HALFGNN_ISA {

// out[edge] = the sum over n of weights[n] own[n], for the edges [first, last)
template <class B, int N>
HALFGNN_NOINLINE void store_products(const Blocks<B>& blocks, const EdgeTile& tile, int64_t first, int64_t last,
                                     const typename B::Acc* const (&weights)[N], const typename B::Acc* const (&own)[N],
                                     typename B::Element* out) {
  for (int64_t e = first; e < last; ++e) {
    prefetch_row(out + tile.edge_id(e + kTileAhead / 2) * blocks.len(), blocks.len());
    typename B::Element* row = out + tile.edge_id(e) * blocks.len();
    blocks.each([&](int64_t h, int64_t slot, int64_t offset) {
      typename B::V sum = {};
      for (int n = 0; n < N; ++n)
        sum = multiply_add(B::weight(weights[n][e * blocks.heads + h]), B::load_acc(own[n] + slot), sum);
      B::store(sum, row + offset);
    });
  }
}

template <class B>
class DotEdges : public EdgeEntries<B> {
  using Base = EdgeEntries<B>;
  using Base::blocks_;
  using Base::factor_;
  using Base::terms_;
  using typename Base::Acc;
  using typename Base::T;

 public:
  DotEdges(const HeadBlocks<B>& blocks, const PairPass& pass, const EdgeTile& tile)
      : Base(blocks, pass, tile),
        scale_(static_cast<Acc>(pass.args.factor)),
        key_(static_cast<const T*>(terms_.key)),
        value_(static_cast<const T*>(terms_.value)),
        feat_(terms_.feat, pass.args.type, terms_.feat ? terms_.feat_dim : 0, tile),
        query_(feat_.workspace()),
        grad_(feat_.workspace()),
        scaled_(tile.capacity()),
        sum_(feat_.workspace()) {
    for (int64_t i = 0; i < feat_.workspace(); ++i) query_[i] = grad_[i] = 0;
  }
  // Bytes per edge that are read twice.
  static int64_t row_bytes(const PairPass& pass) {
    const int64_t bytes = pass.args.heads * pass.args.dim * static_cast<int64_t>(sizeof(T));
    return (pass.args.edge.key ? bytes : 0) +
           (pass.args.edge.value && pass.args.edge.value != pass.args.edge.key ? bytes : 0);
  }

  HALFGNN_INLINE void load(const EdgeTile& tile) {
    if (terms_.feat) feat_.load(tile);
  }
  // The numbers of a row that features of edges meet.
  HALFGNN_INLINE void begin_row(int64_t row) {
    const int64_t first = row * blocks_.heads * terms_.feat_dim;
    if (terms_.query) feat_.load_own(static_cast<const Acc*>(terms_.query) + first, query_);
    if (terms_.grad_out) feat_.load_own(static_cast<const Acc*>(terms_.grad_out) + first, grad_);
  }
  // logits += <own, key> + <query, feat>, without scale
  HALFGNN_INLINE void add_scores(EdgeTile& tile, int64_t first, int64_t last, const Acc* own, Acc* logits) {
    if (key_) add_dots(tile, key_, first, last, own, logits);
    if (terms_.query) feat_.add_dots(first, last, query_, logits);
  }
  // dots += <own, value> + <grad_out, feat>
  HALFGNN_INLINE void add_gradient_dots(EdgeTile& tile, int64_t first, int64_t last, const Acc* own, Acc* dots) {
    if (value_) add_dots(tile, value_, first, last, own, dots);
    if (terms_.grad_out) feat_.add_dots(first, last, grad_, dots);
  }

  // ---- forward

  HALFGNN_INLINE void rescale(const Acc* factor) {
    if (terms_.out) sum_.rescale(blocks_.heads, factor);
  }
  HALFGNN_INLINE void add_values(EdgeTile& tile, int64_t first, int64_t last, const Acc* weights,
                                 RunningSum<Acc>* sum) {
    if (value_) add_rows(tile, value_, first, last, weights, sum);
    if (!terms_.out) return;
    if (tile.starts) sum_.start();
    feat_.add_weighted(first, last, weights, &sum_);
  }
  // Whether out is wide_out, which this stores.
  HALFGNN_INLINE bool store(int64_t row, const Acc* sums, const Acc* factor) {
    if (!terms_.out) return false;
    store_own(row, factor, terms_.out);
    store_wide(blocks_, sums, factor, static_cast<Acc*>(terms_.wide_out) + row * blocks_.len());
    return true;
  }

  // ---- backward over destinations; weights: a_e m_e, dl: the gradients of logits

  HALFGNN_INLINE void store_entries(const EdgeTile& tile, const Acc* weights, const Acc* dl) {
    Base::store_entries(tile, weights, dl);
    const int64_t n = tile.entries();
    for (int64_t i = 0; i < n; ++i) scaled_[i] = scale_ * dl[i];
  }
  // own: query; value: the gradient of out; sum: of the gradient of query, without scale
  HALFGNN_INLINE void add_row(EdgeTile& tile, int64_t first, int64_t last, const Acc* weights, const Acc* dl,
                              const Acc* own, const Acc* value, RunningSum<Acc>* sum) {
    if (key_) add_rows(tile, key_, first, last, dl, sum);
    if (terms_.grad_query) {
      if (tile.starts) sum_.start();
      feat_.add_weighted(first, last, dl, &sum_);
    }
    if (terms_.grad_feat) feat_.store_gradient(tile, first, last, scaled_, query_, weights, grad_, terms_.grad_feat);
    T *grad_key = static_cast<T*>(terms_.grad_key), *grad_value = static_cast<T*>(terms_.grad_value);
    if (grad_key && !grad_value && terms_.key == terms_.value) {
      store_products<B, 2>(blocks_, tile, first, last, {scaled_, weights}, {own, value}, grad_key);
    } else {
      if (grad_key) store_products<B, 1>(blocks_, tile, first, last, {scaled_}, {own}, grad_key);
      if (grad_value) store_products<B, 1>(blocks_, tile, first, last, {weights}, {value}, grad_value);
    }
  }
  HALFGNN_INLINE void store_row(int64_t row) {
    if (!terms_.grad_query) return;
    for (int64_t h = 0; h < blocks_.heads; ++h) factor_[h] = scale_;
    store_own(row, factor_, terms_.grad_query);
  }
  // Whether the gradient of query is stored as Acc, because more is added to it.
  HALFGNN_INLINE bool is_wide() const { return terms_.grad_query; }

 private:
  // values += <own, rows of edges>
  HALFGNN_INLINE void add_dots(EdgeTile& tile, const T* rows, int64_t first, int64_t last, const Acc* own,
                               Acc* values) {
    const int64_t heads = blocks_.heads;
    tile.gather_edges(true);
    dot_edges(blocks_, tile, rows, first, last, own, scaled_.get());
    tile.gather_edges(false);
    for (int64_t i = first * heads; i < last * heads; ++i) values[i] += scaled_[i];
  }
  HALFGNN_INLINE void add_rows(EdgeTile& tile, const T* rows, int64_t first, int64_t last, const Acc* weights,
                               RunningSum<Acc>* sum) {
    tile.gather_edges(true);
    add_edges<true, B, 1>(blocks_, tile, rows, first, last, {weights}, {sum});
    tile.gather_edges(false);
  }
  HALFGNN_INLINE void store_own(int64_t row, const Acc* factor, void* out) {
    feat_.store_own(sum_.finish(), factor, static_cast<Acc*>(out) + row * blocks_.heads * terms_.feat_dim);
  }

  const Acc scale_;
  const T *key_, *value_;
  EdgeFeatures<Acc> feat_;
  Buffer<Acc> query_, grad_;  // of the row
  Buffer<Acc> scaled_;        // of entries
  RunningSum<Acc> sum_;       // of features: edge.out, or the gradient of edge.query
};

}  // namespace halfgnn::HALFGNN_ISA
