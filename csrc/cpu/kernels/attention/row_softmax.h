// Softmax over the edges of a row, tile by tile: a running maximum and sum per head (online softmax).
#pragma once

#include <math.h>

#include "entries.h"

namespace halfgnn::HALFGNN_ISA {

template <class Acc>
class RowSoftmax {
 public:
  explicit RowSoftmax(const EdgeTile& tile)
      : tile_(tile),
        heads_(tile.heads),
        best_(tile.max_rows() * tile.heads),
        sum_(heads_),
        rescale_(heads_),
        inverse_(heads_) {}

  // logits -= the maximum so far of their row and head. Returns the factors, one per head, that what was summed in
  // earlier tiles of the row must be multiplied by; null if all are 1.
  HALFGNN_NOINLINE const Acc* subtract_maximum(Acc* logits) {
    bool rises = false;
    with_columns(heads_, [&](auto columns) {
      const int64_t n = columns.count();
      tile_.each_row([&](int64_t row, int64_t first, int64_t last) {
        Acc* best = best_ + (row - tile_.first_row) * n;
        begin_row(columns, best);
        for (int64_t e = first; e < last; ++e)
          for (int64_t h = 0; h < n; ++h) best[h] = logits[e * n + h] > best[h] ? logits[e * n + h] : best[h];
        if (!tile_.starts) rises |= rescale_sum(columns, best);
        for (int64_t e = first; e < last; ++e)
          for (int64_t h = 0; h < n; ++h) logits[e * n + h] -= shift(best[h]);
      });
    });
    return rises ? rescale_.get() : nullptr;
  }
  // Adds the row's weights of this tile to its sums.
  HALFGNN_INLINE void add(int64_t row, const Acc* weights) {
    add_entries(tile_, tile_.row_first(row), tile_.row_last(row), weights, sum_.get());
  }
  // For a row that ends in this tile: stores lse, if it is wanted, and returns 1 / the sum of all weights, one per
  // head. Both are 0 for a row without edges, and where all logits were -inf.
  HALFGNN_NOINLINE const Acc* finish(int64_t row, void* lse) {
    for (int64_t h = 0; h < heads_; ++h) {
      inverse_[h] = static_cast<Acc>(inverse(h));
      if (lse) static_cast<Acc*>(lse)[row * heads_ + h] = sum_[h] == 0 ? Acc(0) : static_cast<Acc>(log_sum(row, h));
    }
    return inverse_;
  }
  HALFGNN_INLINE double inverse(int64_t head) const { return sum_[head] == 0 ? 0 : 1 / sum_[head]; }

 private:
  template <class Columns>
  HALFGNN_INLINE void begin_row(Columns columns, Acc* best) {
    const int64_t n = columns.count();
    if (tile_.starts) {
      for (int64_t h = 0; h < n; ++h) best[h] = -static_cast<Acc>(INFINITY);
    } else {
      for (int64_t h = 0; h < n; ++h) rescale_[h] = best[h];  // the maximum of earlier tiles
    }
  }
  template <class Columns>
  HALFGNN_INLINE bool rescale_sum(Columns columns, const Acc* best) {
    bool rises = false;
    for (int64_t h = 0; h < columns.count(); ++h) {
      const bool higher = best[h] > rescale_[h];
      rises |= higher;
      rescale_[h] = higher ? static_cast<Acc>(exp(static_cast<double>(rescale_[h] - best[h]))) : Acc(1);
      sum_[h] *= rescale_[h];
    }
    return rises;
  }
  // From logits that are all -inf nothing is subtracted. Their weights are then 0, as they are if a later tile has
  // other logits.
  static HALFGNN_INLINE Acc shift(Acc best) { return best == -static_cast<Acc>(INFINITY) ? Acc(0) : best; }
  HALFGNN_INLINE double log_sum(int64_t row, int64_t head) const {
    return shift(best_[(row - tile_.first_row) * heads_ + head]) + log(sum_[head]);
  }
  const EdgeTile& tile_;
  int64_t heads_;
  Buffer<Acc> best_;
  Buffer<double> sum_;
  Buffer<Acc> rescale_, inverse_;
};

}  // namespace halfgnn::HALFGNN_ISA
