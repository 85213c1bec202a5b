// What edges add to dot attention: rows of keys and of values, columns that all heads share, and a bias.
#pragma once

#include "column_weights.h"
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
        query_rows_(static_cast<const T*>(pass.args.query)),
        grad_rows_(static_cast<const T*>(pass.args.grad)),
        feat_(terms_.feat, pass.args.type, terms_.feat ? terms_.feat_dim : 0, tile),
        key_weight_(blocks, terms_.key_weight, terms_.feat_dim, feat_.width(), products_of_keys(pass)),
        value_weight_(blocks, terms_.value_weight, terms_.feat_dim, feat_.width(), products_of_values(pass)),
        row_step_(terms_.grad_feat && !pass.by_src ? feat_.workspace() : 0),
        query_(feat_.workspace() + tile.max_rows() * row_step_),
        grad_(feat_.workspace() + tile.max_rows() * row_step_),
        scaled_(tile.capacity()),
        sum_(feat_.workspace()) {
    for (int64_t i = 0; i < feat_.workspace() + tile.max_rows() * row_step_; ++i) query_[i] = grad_[i] = 0;
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
  // Makes the numbers of a row that features of edges meet: of its first tile, until the next row begins or, if
  // features have a gradient, until the next tile does.
  HALFGNN_INLINE void begin_row(const EdgeTile& tile, int64_t row) {
    const int64_t first = row * blocks_.heads * terms_.feat_dim, place = place_of(tile, row);
    if (terms_.key_weight) key_weight_.to_columns(query_rows_ + row * blocks_.len(), query_ + place);
    if (terms_.query) feat_.load_own(static_cast<const Acc*>(terms_.query) + first, query_ + place);
    if (!grad_rows_) return;
    if (terms_.value_weight) of_values().to_columns(grad_rows_ + row * blocks_.len(), grad_ + place);
    if (terms_.grad_out) feat_.load_own(static_cast<const Acc*>(terms_.grad_out) + first, grad_ + place);
  }
  // logits += <own, key> + <query, feat>, without scale
  HALFGNN_INLINE void add_scores(EdgeTile& tile, int64_t row, int64_t first, int64_t last, const Acc* own,
                                 Acc* logits) {
    if (key_) add_dots(tile, key_, first, last, own, logits);
    if (terms_.query || terms_.key_weight) feat_.add_dots(first, last, query_ + place_of(tile, row), logits);
  }
  // dots += <own, value> + <grad_out, feat>
  HALFGNN_INLINE void add_gradient_dots(EdgeTile& tile, int64_t row, int64_t first, int64_t last, const Acc* own,
                                        Acc* dots) {
    if (value_) add_dots(tile, value_, first, last, own, dots);
    if (terms_.grad_out || terms_.value_weight) feat_.add_dots(first, last, grad_ + place_of(tile, row), dots);
  }

  // ---- forward

  HALFGNN_INLINE void rescale(const Acc* factor) {
    if (sums_features()) sum_.rescale(blocks_.heads, factor);
  }
  HALFGNN_INLINE void add_values(EdgeTile& tile, int64_t first, int64_t last, const Acc* weights,
                                 RunningSum<Acc>* sum) {
    if (value_) add_rows(tile, value_, first, last, weights, sum);
    if (!sums_features()) return;
    if (tile.starts) sum_.start();
    feat_.add_weighted(first, last, weights, &sum_);
  }
  // Adds what features add to the sums of a row. Whether out is wide_out, which this stores.
  HALFGNN_INLINE bool store(const EdgeTile& tile, int64_t row, Acc* sums, const Acc* factor) {
    if (!sums_features()) return false;
    const Acc* features = sum_.finish();
    if (terms_.out) store_own(row, features, factor, terms_.out);
    if (terms_.value_weight) {
      if (!tile.is_empty(row)) of_values().add_from_columns(features, sums);
      return false;
    }
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
  HALFGNN_INLINE void add_row(EdgeTile& tile, int64_t row, int64_t first, int64_t last, const Acc* weights,
                              const Acc* dl, const Acc* own, const Acc* value, RunningSum<Acc>* sum) {
    if (key_) add_rows(tile, key_, first, last, dl, sum);
    if (terms_.grad_query) {
      if (tile.starts) sum_.start();
      feat_.add_weighted(first, last, dl, &sum_);
    }
    if (terms_.grad_feat) {
      const int64_t place = place_of(tile, row);
      feat_.store_gradient(tile, first, last, scaled_, query_ + place, weights, grad_ + place, terms_.grad_feat);
    }
    T *grad_key = static_cast<T*>(terms_.grad_key), *grad_value = static_cast<T*>(terms_.grad_value);
    if (grad_key && !grad_value && terms_.key == terms_.value) {
      store_products<B, 2>(blocks_, tile, first, last, {scaled_, weights}, {own, value}, grad_key);
    } else {
      if (grad_key) store_products<B, 1>(blocks_, tile, first, last, {scaled_}, {own}, grad_key);
      if (grad_value) store_products<B, 1>(blocks_, tile, first, last, {weights}, {value}, grad_value);
    }
  }
  // Whether add_row() reads `own` and `value`.
  HALFGNN_INLINE bool needs_own() const { return terms_.grad_key || terms_.grad_value; }
  // Adds what features add to the sums of a row.
  HALFGNN_INLINE void store_row(const EdgeTile& tile, int64_t row, Acc* sums) {
    if (!terms_.grad_query) return;
    for (int64_t h = 0; h < blocks_.heads; ++h) factor_[h] = scale_;
    const Acc* features = sum_.finish();
    store_own(row, features, factor_, terms_.grad_query);
    if (terms_.key_weight && !tile.is_empty(row)) key_weight_.add_from_columns(features, sums);
  }
  // Whether the gradient of query is stored as Acc, because more is added to it.
  HALFGNN_INLINE bool is_wide() const { return terms_.query; }

 private:
  static Products products_of_keys(const PairPass& pass) {
    if (pass.by_src) return Products::kNone;
    return pass.args.grad || is_one_weight(pass.args.edge) ? Products::kBoth : Products::kToColumns;
  }
  static Products products_of_values(const PairPass& pass) {
    if (pass.by_src || is_one_weight(pass.args.edge)) return Products::kNone;
    return pass.args.grad ? Products::kToColumns : Products::kFromColumns;
  }
  static bool is_one_weight(const EdgeTerms& terms) { return terms.key_weight == terms.value_weight; }
  HALFGNN_INLINE const ColumnWeights<B>& of_values() const {
    return is_one_weight(terms_) ? key_weight_ : value_weight_;
  }
  // Whether the forward sums features.
  HALFGNN_INLINE bool sums_features() const { return terms_.out || terms_.value_weight; }
  // Where a row's numbers begin. Those of all rows of the tile are needed again for the gradient of features.
  HALFGNN_INLINE int64_t place_of(const EdgeTile& tile, int64_t row) const {
    return (row - tile.first_row) * row_step_;
  }
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
  HALFGNN_INLINE void store_own(int64_t row, const Acc* features, const Acc* factor, void* out) {
    feat_.store_own(features, factor, static_cast<Acc*>(out) + row * blocks_.heads * terms_.feat_dim);
  }

  const Acc scale_;
  const T *key_, *value_;
  const T *query_rows_, *grad_rows_;  // of destinations; grad_rows_ is null in the forward
  EdgeFeatures<Acc> feat_;
  const ColumnWeights<B> key_weight_, value_weight_;
  int64_t row_step_;          // 0: one row's numbers are held at a time
  Buffer<Acc> query_, grad_;  // of rows: numbers that features meet
  Buffer<Acc> scaled_;        // of entries
  RunningSum<Acc> sum_;       // of features: edge.out, or the gradient of edge.query
};

}  // namespace halfgnn::HALFGNN_ISA
