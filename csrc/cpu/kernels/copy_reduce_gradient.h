// The gradient of several reductions of rows (copy_reduce.h), in one pass over the edges of each gathered row.
#pragma once

#include <math.h>

#include "extreme_tiles.h"
#include "kernels.h"
#include "reduce_results.h"
#include "rows.h"
#include "running_sum.h"

namespace halfgnn::HALFGNN_ISA {

// What an edge into a node adds to its source's gradient but for winners: level + slope * x, where x is the source's
// feature. level comes first, then slope, if there is one.
template <class G>
void copy_reduce_node_records(const CopyReduceBackwardArgs& args, float* records, int64_t begin, int64_t end) {
  const int64_t n = args.dim, width = n * (args.has_squares() ? 2 : 1);
  const Ids indptr(args.in_edges.indptr, args.topology.is_int64);
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
  const bool has_sums = args.has_sums(), has_winners = !args.won && (args.max || args.min);
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
      if (has_winners && args.max) max.add(p, count, won);
      if (has_winners && args.min) min.add(p, count, won);
    }
    float* result = winners.finish();
    if (args.won) memcpy(result, args.won + row * n, static_cast<size_t>(n) * sizeof(float));
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

}  // namespace halfgnn::HALFGNN_ISA
