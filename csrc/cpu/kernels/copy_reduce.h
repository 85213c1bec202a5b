// Several reductions of rows in one pass over each row's edges. Their gradient is in copy_reduce_gradient.h.
//
// A run of edges is read twice, the second time from the first-level cache: for the largest and the smallest values and
// the sums, and for the squares about the run's own means. Second moments of runs are joined about their common mean
// (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979), so that
// features keep their digits whatever their offset.
#pragma once

#include <math.h>

#include "copy_reduce_scatter.h"
#include "extreme_tiles.h"
#include "kernels.h"
#include "reduce_results.h"
#include "rows.h"
#include "running_sum.h"

namespace halfgnn::HALFGNN_ISA {

// ---- forward

// Means of runs are corrected by the mean distance from them (Chan, Golub and LeVeque), so that equal values have a
// variance of 0. Halves need it not: fp32 holds their sums of a run with digits to spare.
template <class T>
constexpr bool kCorrectsMeans = sizeof(T) > 2;

// squares = the sum over `count` rows of the squared distances of the first N blocks of `tile` from `mean`. If means
// are corrected, distances = that of the distances.
template <class B, int N>
HALFGNN_NOINLINE void sum_squares(const RowTile& tile, const typename B::Element* const* rows, int64_t count,
                                  const float* mean, float* squares, float* distances) {
  using V = typename B::V;
  constexpr bool kDistances = kCorrectsMeans<typename B::Element>;
  int64_t offset[N];
  V total[N], linear[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    offset[b] = tile.offset[b];
    total[b] = linear[b] = V{};
  }
  for (int64_t k = 0; k < count; ++k) {
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      const V distance = subtract(B::load(rows[k] + offset[b]), B::load_acc(mean + b * B::kWidth));
      if (kDistances) linear[b] = add(linear[b], distance);
      total[b] = multiply_add(distance, distance, total[b]);
    }
  }
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    B::store_acc(total[b], squares + b * B::kWidth);
    if (kDistances) B::store_acc(linear[b], distances + b * B::kWidth);
  }
}

// Sums and second moments of a row, in runs. Workspace is in the order of blocks.
template <class B>
class Moments {
 public:
  Moments(const Blocks<B>& blocks, bool has_squares)
      : blocks_(blocks),
        tiles_(blocks),
        n_(blocks.workspace()),
        has_squares_(has_squares),
        corrects_(has_squares && kCorrectsMeans<typename B::Element>),
        run_(n_),
        mean_(n_),
        squares_(has_squares ? n_ : 0),
        origin_(corrects_ ? n_ : 0),
        distances_(corrects_ ? n_ : 0),
        sum_(n_),
        all_squares_(has_squares ? n_ : 0) {}

  void start() { edges_ = 0; }
  // Begins a run, whose sum is to be written to the returned values, ...
  float* start_run() {
    if (edges_ == kRun) widen();
    return run_;
  }
  // ... by this or by another.
  void sum_run(const typename B::Element* const* rows, int64_t count) { tiles_.sum(rows, count, nullptr, run_); }
  // Adds the run to the row.
  void add(const typename B::Element* const* rows, int64_t count) {
    // Divided, so that the mean of equal values is that value.
    for (int64_t i = 0; i < n_; ++i) mean_[i] = run_[i] / static_cast<float>(count);
    if (has_squares_) add_squares(rows, count);
    if (corrects_) correct(count);
    if (edges_ > 0) join(count);
    edges_ += count;
  }
  // Afterwards sum(), mean() and squares() are those of the row.
  void finish() {
    if (edges_ == 0) {
      for (int64_t i = 0; i < n_; ++i) run_[i] = mean_[i] = 0.f;
      for (int64_t i = 0; has_squares_ && i < n_; ++i) squares_[i] = 0.f;
    } else if (edges_ > kRun) {
      const auto edges = static_cast<double>(edges_);
      for (int64_t i = 0; i < n_; ++i) {
        run_[i] = static_cast<float>(sum_[i]);
        mean_[i] = static_cast<float>(sum_[i] / edges);
      }
      for (int64_t i = 0; has_squares_ && i < n_; ++i) squares_[i] = static_cast<float>(all_squares_[i]);
    }
  }
  const float* sum() const { return run_; }
  const float* mean() const { return mean_; }
  float* squares() const { return squares_; }  // about the means

 private:
  // Two sums of each vector take as many registers as two vectors of one sum.
  static constexpr int kSquareBlocks = kCorrectsMeans<typename B::Element> ? kTileBlocks / 2 : kTileBlocks;

  HALFGNN_NOINLINE void add_squares(const typename B::Element* const* rows, int64_t count) {
    each_tile<kSquareBlocks>(blocks_, [&](auto n, const RowTile& tile, int64_t slot) {
      sum_squares<B, decltype(n)::kBlocks>(tile, rows, count, mean_ + slot, squares_ + slot,
                                           corrects_ ? distances_ + slot : nullptr);
    });
  }
  // Moves the mean of a run, and its squares, by what the mean was off.
  HALFGNN_NOINLINE void correct(int64_t count) {
    const auto edges = static_cast<float>(count);
    for (int64_t i = 0; i < n_; ++i) {
      const float distance = distances_[i] - distances_[i] == 0.f ? distances_[i] : 0.f;  // infinite values
      const float by = distance / edges, squares = squares_[i] - distance * by;
      squares_[i] = squares < 0.f ? 0.f : squares;  // NaN stays NaN
      origin_[i] = mean_[i];
      distances_[i] = distance;
      mean_[i] += by;
    }
  }
  // The sum of a run of `edges` values.
  HALFGNN_INLINE double sum_of_run(int64_t i, double edges) const {
    if (!corrects_) return static_cast<double>(run_[i]);
    return static_cast<double>(origin_[i]) * edges + static_cast<double>(distances_[i]);
  }
  // The totals are those of the first run.
  HALFGNN_NOINLINE void widen() {
    for (int64_t i = 0; i < n_; ++i) sum_[i] = sum_of_run(i, static_cast<double>(kRun));
    for (int64_t i = 0; has_squares_ && i < n_; ++i) all_squares_[i] = static_cast<double>(squares_[i]);
  }
  // Adds a run of `count` edges to the totals. Divides by counts, so that equal means differ by 0.
  HALFGNN_NOINLINE void join(int64_t count) {
    const auto before = static_cast<double>(edges_), own = static_cast<double>(count);
    const double weight = before * own / (before + own);
    for (int64_t i = 0; i < n_; ++i) {
      const double sum = sum_of_run(i, own);
      if (has_squares_) {
        const double distance = sum / own - sum_[i] / before;
        all_squares_[i] += static_cast<double>(squares_[i]) + distance * distance * weight;
      }
      sum_[i] += sum;
    }
  }

  const Blocks<B> blocks_;
  const RowTiles<B> tiles_;
  const int64_t n_;
  const bool has_squares_, corrects_;
  int64_t edges_ = 0;
  Buffer<float> run_, mean_, squares_;
  Buffer<float> origin_, distances_;  // of a run whose mean is corrected: its mean before, the sum of distances from it
  Buffer<double> sum_, all_squares_;
};

// The square roots of variances that pass eps, else 0. NaN stays NaN.
HALFGNN_NOINLINE inline void take_roots(float* x, int64_t n, float eps) {
  for (int64_t i = 0; i < n; ++i) {
    const float root = __builtin_sqrtf(x[i]);
    x[i] = x[i] <= eps ? 0.f : root;
  }
}

template <class B>
void copy_reduce_rows(const CopyReduceArgs& args, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  const Adjacency adj(args.topology);
  const Blocks<B> blocks(1, args.dim);
  RowWindow<T> edges(adj, static_cast<const T*>(args.feat), args.dim, args.feat_by_edge);
  const bool has_squares = args.var || args.std || args.kept_std;
  const bool has_sums = args.sum || args.mean || args.kept_mean || has_squares;
  const bool has_extremes = args.max || args.min, has_ids = args.arg_max || args.arg_min;
  Moments<B> moments(blocks, has_squares);
  ExtremeTiles<B> extremes(blocks, args.max, args.min);
  const ReduceResults<B> results(blocks, args);
  uint32_t ids[kRun];
  const int64_t n = blocks.workspace();

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1], degree = end - begin;
    moments.start();
    if (degree == 0 && has_extremes) extremes.clear();
    for (int64_t p = begin; p < end; p += kRun) {
      const int64_t count = end - p < kRun ? end - p : kRun;
      edges.hold(p, count);
      const T* const* rows = edges.rows(p);
      float* sum = has_sums ? moments.start_run() : nullptr;
      if (has_extremes) {
        extremes.add({rows, has_ids ? short_ids(adj, p, count, ids) : nullptr, count, p == begin}, sum);
      } else {
        moments.sum_run(rows, count);
      }
      if (has_sums) moments.add(rows, count);
    }
    if (has_sums) {
      moments.finish();
      results.sum.store(moments.sum(), row);
      results.mean.store(moments.mean(), row);
      results.kept_mean.store(moments.mean(), row);
    }
    if (has_squares) {
      float* squares = moments.squares();
      const float inverse = degree > 0 ? 1.f / static_cast<float>(degree) : 1.f;
      for (int64_t i = 0; i < n; ++i) squares[i] *= inverse;
      results.var.store(squares, row);
      if (args.std || args.kept_std) take_roots(squares, n, args.eps);
      results.std.store(squares, row);
      results.kept_std.store(squares, row);
    }
    if (has_extremes) {
      results.max.store(extremes.max().value, row);
      results.min.store(extremes.min().value, row);
      results.arg_max.store(extremes.max().id, row);
      results.arg_min.store(extremes.min().id, row);
    }
  }
}

// ---- the kernels of the table

static void copy_reduce(const CopyReduceArgs& args, int64_t begin, int64_t end) {
  with_vector_type(args.type, [&](auto t) {
    with_block<TypeOf<decltype(t)>>(args.dim, [&](auto b) { copy_reduce_rows<decltype(b)>(args, begin, end); });
  });
}
static void copy_reduce_records(const CopyReduceBackwardArgs& args, float* records, int64_t begin, int64_t end) {
  with_vector_type(args.grad_type,
                   [&](auto g) { copy_reduce_node_records<TypeOf<decltype(g)>>(args, records, begin, end); });
}
static void copy_reduce_gradient(const CopyReduceBackwardArgs& args, const float* records, int64_t begin, int64_t end) {
  with_vector_type(args.grad_type, [&](auto g) {
    with_plain_block<TypeOf<decltype(g)>>(args.dim, [&](auto b) {
      with_block<float>(
          args.dim, [&](auto r) { copy_reduce_gradient_rows<decltype(r), decltype(b)>(args, records, begin, end); });
    });
  });
}

extern const CopyReduceKernels kCopyReduce;
const CopyReduceKernels kCopyReduce = {copy_reduce, copy_reduce_records, copy_reduce_gradient, copy_reduce_winners,
                                       copy_reduce_scatter};

}  // namespace halfgnn::HALFGNN_ISA
