// Softmax over the edges of each row of an adjacency, and its gradient, for edge data of 9 columns and more. Columns
// are cut into tiles, and each tile is worked on for all edges of a run before the next one (see row_tiles.h): its
// second pass and its third read from the first-level cache.
#pragma once

#include "exp.h"
#include "kernels.h"
#include "row_tiles.h"
#include "running_sum.h"
#include "stream.h"

namespace halfgnn::HALFGNN_ISA {

// Blocks of a tile. Every vector of a block takes two registers: for its sum and its largest value, or for two sums.
constexpr int kSoftmaxBlocks = kTileBlocks / 2;

// Edges of one row: their values, which are logits or, in the backward, weights; the gradients of the weights; results.
// Edge k's begin at offsets[k], and offsets of kRowsAhead more edges follow, to be prefetched.
template <class E>
struct SoftmaxRun {
  const E* values;
  const E* grads;
  E* out;
  const int64_t* offsets;
  int64_t count;
  bool streams;  // out
};

// ---- a tile: its first N blocks

// best = the largest of best and the values. NaN is passed over: exp(NaN - best) keeps it.
template <class B, int N>
HALFGNN_NOINLINE void raise_to_largest(const RowTile& tile, const SoftmaxRun<typename B::Element>& run, float* best) {
  const typename B::Element* values[N];
  typename B::V largest[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    values[b] = run.values + tile.offset[b];
    largest[b] = B::load_acc(best + b * B::kWidth);
  }
  for (int64_t k = 0; k < run.count; ++k) {
    prefetch_tile<B, N>(tile, run.values + run.offsets[k + kRowsAhead]);
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      const auto x = B::load(values[b] + run.offsets[k]);
      HALFGNN_UNROLL_BLOCKS
      for (int i = 0; i < B::kWidth / B::L; ++i) largest[b].v[i] = larger(x.v[i], largest[b].v[i]);
    }
  }
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) B::store_acc(largest[b], best + b * B::kWidth);
}

// exps = exp(values - best), N blocks of workspace per edge, and sum = their sum over the edges.
template <class B, int N>
HALFGNN_NOINLINE void sum_exps(const RowTile& tile, const SoftmaxRun<typename B::Element>& shape, const float* best,
                               float* exps, float* sum) {
  const SoftmaxRun<typename B::Element> run = shape;  // which no store can change
  const typename B::Element* values[N];
  typename B::V largest[N], total[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    values[b] = run.values + tile.offset[b];
    largest[b] = B::load_acc(best + b * B::kWidth);
    total[b] = typename B::V{};
  }
  for (int64_t k = 0; k < run.count; ++k, exps += N * B::kWidth) {
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      auto e = subtract(B::load(values[b] + run.offsets[k]), largest[b]);
      HALFGNN_UNROLL_BLOCKS
      for (int i = 0; i < B::kWidth / B::L; ++i) e.v[i] = exp_nonpositive(e.v[i]);
      total[b] = add(total[b], e);
      B::store_acc(e, exps + b * B::kWidth);
    }
  }
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) B::store_acc(total[b], sum + b * B::kWidth);
}

// out = exps / sum
template <class B, int N>
HALFGNN_NOINLINE void store_weights(const RowTile& tile, const SoftmaxRun<typename B::Element>& shape,
                                    const float* exps, const float* sum) {
  const SoftmaxRun<typename B::Element> run = shape;  // which no store can change
  typename B::Element* out[N];
  typename B::V factor[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    out[b] = run.out + tile.offset[b];
    factor[b] = B::load_acc(sum + b * B::kWidth);
    HALFGNN_UNROLL_BLOCKS
    for (int i = 0; i < B::kWidth / B::L; ++i) factor[b].v[i] = splat<B::L>(1.f) / factor[b].v[i];
  }
  for (int64_t k = 0; k < run.count; ++k, exps += N * B::kWidth) {
    if (!run.streams) prefetch_tile<B, N, 1>(tile, run.out + run.offsets[k + kRowsAhead]);
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b)
      store_block<B>(multiply(factor[b], B::load_acc(exps + b * B::kWidth)), out[b] + run.offsets[k], run.streams);
  }
}

// products = the sum of weight * grad over the edges, weights = that of weight
template <class B, int N>
HALFGNN_NOINLINE void sum_products(const RowTile& tile, const SoftmaxRun<typename B::Element>& run, float* products,
                                   float* weights) {
  using V = typename B::V;
  const typename B::Element *values[N], *grads[N];
  V product[N], total[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    values[b] = run.values + tile.offset[b];
    grads[b] = run.grads + tile.offset[b];
    product[b] = total[b] = V{};
  }
  for (int64_t k = 0; k < run.count; ++k) {
    prefetch_tile<B, N>(tile, run.values + run.offsets[k + kRowsAhead]);
    prefetch_tile<B, N>(tile, run.grads + run.offsets[k + kRowsAhead]);
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      const V w = B::load(values[b] + run.offsets[k]);
      product[b] = multiply_add(w, B::load(grads[b] + run.offsets[k]), product[b]);
      total[b] = add(total[b], w);
    }
  }
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    B::store_acc(product[b], products + b * B::kWidth);
    B::store_acc(total[b], weights + b * B::kWidth);
  }
}

// out = weight (grad - products / weights), see softmax_gradient_row() of edge_softmax.h
template <class B, int N>
HALFGNN_NOINLINE void store_gradients(const RowTile& tile, const SoftmaxRun<typename B::Element>& shape,
                                      const float* products, const float* weights) {
  using V = typename B::V;
  const SoftmaxRun<typename B::Element> run = shape;  // which no store can change
  const typename B::Element *values[N], *grads[N];
  typename B::Element* out[N];
  V mean[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    values[b] = run.values + tile.offset[b];
    grads[b] = run.grads + tile.offset[b];
    out[b] = run.out + tile.offset[b];
    const V product = B::load_acc(products + b * B::kWidth), total = B::load_acc(weights + b * B::kWidth);
    HALFGNN_UNROLL_BLOCKS
    for (int i = 0; i < B::kWidth / B::L; ++i)
      mean[b].v[i] = choose_lanes(greater(total.v[i], splat<B::L>(0.f)), product.v[i] / total.v[i], product.v[i]);
  }
  for (int64_t k = 0; k < run.count; ++k) {
    if (!run.streams) prefetch_tile<B, N, 1>(tile, run.out + run.offsets[k + kRowsAhead]);
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      const V w = B::load(values[b] + run.offsets[k]), g = B::load(grads[b] + run.offsets[k]);
      store_block<B>(multiply(w, subtract(g, mean[b])), out[b] + run.offsets[k], run.streams);
    }
  }
}

// ---- rows

// A row of up to kRun edges.
template <class B>
HALFGNN_NOINLINE void softmax_run(const Blocks<B>& blocks, const SoftmaxRun<typename B::Element>& run) {
  each_tile<kSoftmaxBlocks>(blocks, [&](auto n, const RowTile& tile, int64_t) {
    constexpr int N = decltype(n)::kBlocks;
    alignas(64) float best[N * B::kWidth], sum[N * B::kWidth], exps[kRun * N * B::kWidth];
    for (float& x : best) x = -INFINITY;
    raise_to_largest<B, N>(tile, run, best);
    sum_exps<B, N>(tile, run, best, exps, sum);
    store_weights<B, N>(tile, run, exps, sum);
  });
}
template <class B>
HALFGNN_NOINLINE void softmax_gradient_run(const Blocks<B>& blocks, const SoftmaxRun<typename B::Element>& run) {
  each_tile<kSoftmaxBlocks>(blocks, [&](auto n, const RowTile& tile, int64_t) {
    constexpr int N = decltype(n)::kBlocks;
    alignas(64) float products[N * B::kWidth], weights[N * B::kWidth];
    sum_products<B, N>(tile, run, products, weights);
    store_gradients<B, N>(tile, run, products, weights);
  });
}

// A row of any number of edges, in passes over its runs. The gradient has no first pass.
enum class SoftmaxPass { kLargest, kSums, kResults };
constexpr SoftmaxPass kSoftmaxPasses[] = {SoftmaxPass::kLargest, SoftmaxPass::kSums, SoftmaxPass::kResults};

template <class B>
class SoftmaxHub {
 public:
  using Run = SoftmaxRun<typename B::Element>;
  explicit SoftmaxHub(const Blocks<B>& blocks)
      : blocks_(blocks), best_(blocks.workspace()), products_(blocks.workspace()), weights_(blocks.workspace()) {}

  HALFGNN_NOINLINE void start(SoftmaxPass pass) {
    if (pass == SoftmaxPass::kLargest) {
      for (int64_t i = 0; i < blocks_.workspace(); ++i) best_[i] = -INFINITY;
    } else if (pass == SoftmaxPass::kSums) {
      products_.start();
      weights_.start();
    } else {
      products_.finish();
      weights_.finish();
    }
  }
  HALFGNN_NOINLINE void softmax(SoftmaxPass pass, const Run& run) {
    each_tile<kSoftmaxBlocks>(blocks_, [&](auto n, const RowTile& tile, int64_t slot) {
      constexpr int N = decltype(n)::kBlocks;
      alignas(64) float exps[kRun * N * B::kWidth], again[N * B::kWidth];
      float* sum = weights_.sum() + slot;
      if (pass == SoftmaxPass::kLargest) return raise_to_largest<B, N>(tile, run, best_ + slot);
      sum_exps<B, N>(tile, run, best_ + slot, exps, pass == SoftmaxPass::kSums ? sum : again);
      if (pass == SoftmaxPass::kResults) store_weights<B, N>(tile, run, exps, sum);
    });
    if (pass == SoftmaxPass::kSums) weights_.fold();
  }
  HALFGNN_NOINLINE void gradient(SoftmaxPass pass, const Run& run) {
    float *products = products_.sum(), *weights = weights_.sum();
    each_tile<kSoftmaxBlocks>(blocks_, [&](auto n, const RowTile& tile, int64_t slot) {
      constexpr int N = decltype(n)::kBlocks;
      if (pass == SoftmaxPass::kSums) return sum_products<B, N>(tile, run, products + slot, weights + slot);
      store_gradients<B, N>(tile, run, products + slot, weights + slot);
    });
    if (pass != SoftmaxPass::kSums) return;
    products_.fold();
    weights_.fold();
  }

 private:
  const Blocks<B> blocks_;
  Buffer<float> best_;
  RunningSum<float> products_, weights_;
};

// Where the rows of consecutive edges begin in edge data of `len` elements per edge.
class EdgeOffsets {
 public:
  EdgeOffsets(const Adjacency& adj, int64_t len) : adj_(adj), len_(len) {}
  // Of the edges [begin, begin + count), count <= kRun, and of kRowsAhead more.
  HALFGNN_INLINE const int64_t* from(int64_t begin, int64_t count) {
    if (begin < begin_ || begin + count > end_) fill(begin);
    return offsets_ + (begin - begin_);
  }

 private:
  HALFGNN_NOINLINE void fill(int64_t begin) {
    const int64_t left = adj_.num_edges - begin, wanted = kEdges + kRowsAhead, n = left < wanted ? left : wanted;
    if (adj_.edge_ids) {
      adj_.edge_ids.resolve([&](const auto* ids) {
        for (int64_t k = 0; k < n; ++k) offsets_[k] = int64_t{ids[begin + k]} * len_;
      });
    } else {
      for (int64_t k = 0; k < n; ++k) offsets_[k] = (begin + k) * len_;
    }
    for (int64_t k = n; k < wanted; ++k) offsets_[k] = 0;
    begin_ = begin;
    end_ = begin + kEdges;
  }

  static constexpr int64_t kEdges = 2 * kRun;
  const Adjacency adj_;
  const int64_t len_;
  int64_t begin_ = 0, end_ = 0;
  int64_t offsets_[kEdges + kRowsAhead];
};

// The softmax or, if there is a gradient, its gradient.
template <class B>
void softmax_of_blocks(const EdgeSoftmaxArgs& args, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  const Adjacency adj(args.topology);
  const Blocks<B> blocks(1, args.columns);
  const RowStream stream(args.out, adj.num_edges, args.columns * static_cast<int64_t>(sizeof(T)));
  EdgeOffsets offsets(adj, args.columns);
  SoftmaxHub<B> hub(blocks);
  SoftmaxRun<T> run{
      static_cast<const T*>(args.logits), static_cast<const T*>(args.grad), static_cast<T*>(args.out), nullptr, 0,
      static_cast<bool>(stream)};
  const auto hold = [&](int64_t begin, int64_t end) {
    run.count = end - begin < kRun ? end - begin : kRun;
    run.offsets = offsets.from(begin, run.count);
  };

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    if (begin == end) continue;
    if (end - begin <= kRun) {
      hold(begin, end);
      if (run.grads) {
        softmax_gradient_run(blocks, run);
      } else {
        softmax_run(blocks, run);
      }
      continue;
    }
    for (const SoftmaxPass pass : kSoftmaxPasses) {
      if (pass == SoftmaxPass::kLargest && run.grads) continue;
      hub.start(pass);
      for (int64_t p = begin; p < end; p += kRun) {
        hold(p, end);
        if (run.grads) {
          hub.gradient(pass, run);
        } else {
          hub.softmax(pass, run);
        }
      }
    }
  }
}

}  // namespace halfgnn::HALFGNN_ISA
