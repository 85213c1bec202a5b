// Several reductions of rows in one pass over each row's edges, and their gradient in one pass over the edges of each
// gathered row.
//
// A run of edges is read twice, the second time from the first-level cache: for the largest and the smallest values and
// the sums, and for the squares about the run's own means. Second moments of runs are joined about their common mean
// (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979), so that
// features keep their digits whatever their offset.
#pragma once

#include <math.h>

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

// The ids of the `count` edges from `begin` on in 32 bits: in place, or copied to `ids`.
HALFGNN_INLINE const uint32_t* short_ids(const Adjacency& adj, int64_t begin, int64_t count, uint32_t* ids) {
  if (adj.edge_ids && !adj.is_int64) return reinterpret_cast<const uint32_t*>(adj.edge_ids.as<int32_t>() + begin);
  const int64_t* edge_ids = adj.edge_ids.as<int64_t>();
  for (int64_t k = 0; k < count; ++k) ids[k] = static_cast<uint32_t>(edge_ids ? edge_ids[begin + k] : begin + k);
  return ids;
}

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

// ---- gradient

// What an edge into a node adds to its source's gradient but for winners: level + slope * x, where x is the source's
// feature. level comes first, then slope, if there is one.
template <class G>
void copy_reduce_node_records(const CopyReduceBackwardArgs& args, float* records, int64_t begin, int64_t end) {
  const int64_t n = args.dim, width = n * (args.has_squares() ? 2 : 1);
  const Ids indptr(args.indptr, args.topology.is_int64);
  Buffer<float> grad(n);
  for (int64_t v = begin; v < end; ++v) {
    const int64_t degree = indptr[v + 1] - indptr[v];
    const float inverse = degree > 1 ? 1.f / static_cast<float>(degree) : 1.f;
    float *level = records + v * width, *slope = level + n;
    const auto read = [&](const void* x) { decode_row(static_cast<const G*>(x) + v * n, n, grad.get()); };
    if (args.sum) {
      decode_row(static_cast<const G*>(args.sum) + v * n, n, level);
    } else {
      for (int64_t i = 0; i < n; ++i) level[i] = 0.f;
    }
    if (args.mean) {
      read(args.mean);
      for (int64_t i = 0; i < n; ++i) level[i] += grad[i] * inverse;
    }
    if (!args.has_squares()) continue;
    for (int64_t i = 0; i < n; ++i) slope[i] = 0.f;
    if (args.var) {
      read(args.var);
      for (int64_t i = 0; i < n; ++i) slope[i] = 2.f * inverse * grad[i];
    }
    const float* mean = args.kept_mean + v * n;
    if (args.std) {
      const float* std = args.kept_std + v * n;
      read(args.std);
      // A std that the mean may be rounded by is none: distances from the mean would be divided by it.
      for (int64_t i = 0; i < n; ++i)
        slope[i] += std[i] <= __builtin_fabsf(mean[i]) * 0x1p-24f ? 0.f : inverse * grad[i] / std[i];
    }
    for (int64_t i = 0; i < n; ++i) level[i] -= slope[i] * mean[i];
  }
}

// Blocks of one vector, whose lanes are in the order of memory: ids are compared with them.
template <class G, class F>
HALFGNN_INLINE void with_plain_block(int64_t dim, F f) {
  if (kLanes > 8 && dim >= kLanes) return f(Block<G, kLanes>{});
  return f(Block<G, 8>{});
}

// sum += the gradients of those elements whose winner is one of `count` edges. Gradients lie in `rows` of `grad`, and
// winners in the same places of `arg`.
template <class B, int N>
HALFGNN_NOINLINE void add_winners(const int64_t* offsets, const typename B::Element* grad,
                                  const typename B::Element* const* rows, const int32_t* arg, int64_t count,
                                  const uint32_t* edge_ids, float* sum) {
  constexpr int L = B::L;
  int64_t offset[N];
  FloatsOf<L> total[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    offset[b] = offsets[b];
    total[b] = load_unaligned<FloatsOf<L>>(sum + offset[b]);
  }
  for (int64_t k = 0; k < count; ++k) {
    const typename B::Element* g = rows[k];
    const int32_t* winner = arg + (g - grad);
    __builtin_prefetch(rows[k + kRowsAhead] + offset[0]);
    __builtin_prefetch(arg + (rows[k + kRowsAhead] - grad) + offset[0]);
    if (sizeof(*arg) * N * L > 64) __builtin_prefetch(arg + (rows[k + kRowsAhead] - grad) + offset[N - 1]);
    const WordsOf<L> edge = splat_bits<L>(edge_ids[k]);
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      const auto mine = equal(load_unaligned<WordsOf<L>>(winner + offset[b]), edge);
      const auto x = bit_cast<WordsOf<L>>(B::load(g + offset[b]).v[0]);
      total[b] += bit_cast<FloatsOf<L>>(x & bit_cast<WordsOf<L>>(mine));
    }
  }
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) memcpy(sum + offset[b], &total[b], sizeof(total[b]));
}

// The gradients of max or of min, as terms of the rows' gradients.
template <class B>
class Winners {
 public:
  using G = typename B::Element;
  Winners(const Adjacency& adj, const void* grad, const int32_t* arg, int64_t dim)
      : adj_(adj),
        grad_(static_cast<const G*>(grad)),
        arg_(arg),
        blocks_(1, dim),
        edges_(adj, grad_, dim, false),
        last_(B::kWidth) {}

  // Adds those of `count` edges from `begin` on.
  void add(int64_t begin, int64_t count, float* sum) {
    constexpr int N = 4;
    edges_.hold(begin, count);
    const G* const* rows = edges_.rows(begin);
    uint32_t buffer[kRun];
    const uint32_t* ids = short_ids(adj_, begin, count, buffer);
    int64_t b = 0, offset[N];
    const int64_t whole = blocks_.overlap() ? blocks_.per_head - 1 : blocks_.per_head;
    for (; b + N <= whole; b += N) {
      for (int i = 0; i < N; ++i) offset[i] = blocks_.offset(0, b + i);
      add_winners<B, N>(offset, grad_, rows, arg_, count, ids, sum);
    }
    for (; b < whole; ++b) {
      offset[0] = blocks_.offset(0, b);
      add_winners<B, 1>(offset, grad_, rows, arg_, count, ids, sum);
    }
    if (b == blocks_.per_head) return;
    // What the last block shares with its neighbour is added once.
    offset[0] = blocks_.offset(0, b);
    const size_t shared = static_cast<size_t>(blocks_.overlap()) * sizeof(float);
    memcpy(last_.get(), sum + offset[0], shared);
    add_winners<B, 1>(offset, grad_, rows, arg_, count, ids, sum);
    memcpy(sum + offset[0], last_.get(), shared);
  }

 private:
  const Adjacency adj_;
  const G* const grad_;
  const int32_t* const arg_;
  const Blocks<B> blocks_;
  RowWindow<G> edges_;
  Buffer<float> last_;
};

// R: a block of records. B: a block of gradients.
template <class R, class B>
void copy_reduce_gradient_rows(const CopyReduceBackwardArgs& args, const float* records, int64_t row_begin,
                               int64_t row_end) {
  const Adjacency adj(args.topology);
  const int64_t n = args.dim, parts = args.has_squares() ? 2 : 1;
  const Blocks<R> blocks(parts, n);
  const RowTiles<R> tiles(blocks);
  RowWindow<float> edges(adj, records, parts * n, false);
  Winners<B> max(adj, args.max, args.arg_max, n), min(adj, args.min, args.arg_min, n);
  RunningSum<float> sums(blocks.workspace()), winners(n);
  const bool has_sums = args.has_sums(), has_winners = args.max || args.min;
  Buffer<float> level(parts * n), feat(n);

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    float* sum = sums.start();
    float* won = winners.start();
    for (int64_t p = begin; p < end; p += kRun) {
      const int64_t count = end - p < kRun ? end - p : kRun;
      if (p > begin) {
        if (has_sums) sums.fold();
        if (has_winners) winners.fold();
      }
      if (has_sums) {
        edges.hold(p, count);
        tiles.sum(edges.rows(p), count, nullptr, sum);
      }
      if (args.max) max.add(p, count, won);
      if (args.min) min.add(p, count, won);
    }
    float* result = winners.finish();
    if (has_sums) {
      store_scaled(blocks, sums.finish(), 1.f, level.get());
      for (int64_t i = 0; i < n; ++i) result[i] += level[i];
    }
    if (parts == 2) {
      decode(Operand{args.feat, args.type, n, 0, Target::kRow}, row, feat.get());
      for (int64_t i = 0; i < n; ++i) result[i] += feat[i] * level[n + i];
    }
    encode(result, n, args.type, args.grad_feat, row);
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
const CopyReduceKernels kCopyReduce = {copy_reduce, copy_reduce_records, copy_reduce_gradient};

}  // namespace halfgnn::HALFGNN_ISA
