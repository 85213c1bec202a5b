// Edge softmax and its gradient: many columns in tiles (softmax_tiles.h), few of them and fp64 in chunks.
#pragma once

#include "chunk.h"
#include "columns.h"
#include "exp.h"
#include "kernels.h"
#include "running_sum.h"
#include "softmax_tiles.h"

namespace halfgnn::HALFGNN_ISA {

// ---- 1, 2, 4 or 8 columns: a row is flat, and lane l of a vector is of column l % C
//
// Rows are read from one buffer and written to another, in order. A row's last vector may pass its end: what it writes
// there is overwritten by the next row.

// Values that are added up in fp32 (see RunningSum).
constexpr int64_t kRunValues = kRun * kLanes;

// Sums by column of the vectors that add_terms(i, mask, sums) adds to them, for the values i to i + kLanes of a row
// of n.
template <int C, int S, class F>
HALFGNN_INLINE void sum_row(int64_t n, Floats* sums, F add_terms) {
  const auto sum_run = [&](int64_t begin, Floats* run) {
    for (int s = 0; s < S; ++s) run[s] = Floats{};
    each_vector(begin, n - begin < kRunValues ? n : begin + kRunValues,
                [&](int64_t i, Words mask) { add_terms(i, mask, run); });
    for (int s = 0; s < S; ++s) run[s] = fold_columns<C>(run[s], [](auto a, auto b) { return a + b; });
  };
  sum_run(0, sums);
  if (n <= kRunValues) return;
  double total[S][kLanes] = {};
  Floats run[S];
  for (int s = 0; s < S; ++s) run[s] = sums[s];
  for (int64_t begin = kRunValues; true; begin += kRunValues) {
    for (int s = 0; s < S; ++s)
      for (int l = 0; l < kLanes; ++l) total[s][l] += run[s][l];
    if (begin >= n) break;
    sum_run(begin, run);
  }
  for (int s = 0; s < S; ++s)
    for (int l = 0; l < kLanes; ++l) sums[s][l] = static_cast<float>(total[s][l]);
}

template <int C>
HALFGNN_INLINE void softmax_row(const float* x, int64_t n, float* out) {
  const Floats least = splat(-INFINITY);
  Floats best = least;
  each_vector(0, n, [&](int64_t i, Words mask) { best = larger(select(mask, load_vector(x + i), least), best); });
  best = fold_columns<C>(best, [](auto a, auto b) { return larger(a, b); });
  Floats sum;
  sum_row<C, 1>(n, &sum, [&](int64_t i, Words mask, Floats* sums) {
    const Floats e = exp_nonpositive(load_vector(x + i) - best);
    store_vector(e, out + i);
    sums[0] += keep(e, mask);
  });
  const Floats factor = splat(1.f) / sum;
  for (int64_t i = 0; i < n; i += kLanes) store_vector(load_vector(out + i) * factor, out + i);
}

// out = weight (grad - sum(weight grad) / sum(weight)), column by column. sum(weight) was 1 before the weights were
// rounded; dividing by it makes the result sum to zero whatever the rounding.
template <int C>
HALFGNN_INLINE void softmax_gradient_row(const float* weight, const float* grad, int64_t n, float* out) {
  Floats sums[2];
  sum_row<C, 2>(n, sums, [&](int64_t i, Words mask, Floats* sums) {
    const Floats w = keep(load_vector(weight + i), mask);
    sums[0] += w * keep(load_vector(grad + i), mask);
    sums[1] += w;
  });
  const Floats mean = sums[1] > splat(0.f) ? sums[0] / sums[1] : sums[0];
  for (int64_t i = 0; i < n; i += kLanes)
    store_vector(load_vector(weight + i) * (load_vector(grad + i) - mean), out + i);
}

// ---- any number of columns. Sums are fp64 (see RunningSum). Workspace: columns values each.

template <class Acc>
HALFGNN_INLINE void softmax_row(int64_t columns, const Acc* x, int64_t n, Acc* out, Acc* best, double* sum) {
  for (int64_t c = 0; c < columns; ++c) best[c] = x[c];
  for (int64_t i = columns; i < n; i += columns)
    for (int64_t c = 0; c < columns; ++c) best[c] = x[i + c] > best[c] ? x[i + c] : best[c];
  for (int64_t i = 0; i < n; i += columns)
    for (int64_t c = 0; c < columns; ++c) out[i + c] = x[i + c] - best[c];
  exp_values(out, n);
  for (int64_t c = 0; c < columns; ++c) sum[c] = 0;
  for (int64_t i = 0; i < n; i += columns)
    for (int64_t c = 0; c < columns; ++c) sum[c] += out[i + c];
  for (int64_t c = 0; c < columns; ++c) sum[c] = 1 / sum[c];
  for (int64_t i = 0; i < n; i += columns)
    for (int64_t c = 0; c < columns; ++c) out[i + c] *= static_cast<Acc>(sum[c]);
}
template <class Acc>
HALFGNN_INLINE void softmax_gradient_row(int64_t columns, const Acc* weight, const Acc* grad, int64_t n, Acc* out,
                                         double* mean, double* total) {
  for (int64_t c = 0; c < columns; ++c) mean[c] = total[c] = 0;
  for (int64_t i = 0; i < n; i += columns)
    for (int64_t c = 0; c < columns; ++c) {
      mean[c] += weight[i + c] * grad[i + c];
      total[c] += weight[i + c];
    }
  for (int64_t c = 0; c < columns; ++c) mean[c] = total[c] > 0 ? mean[c] / total[c] : mean[c];
  for (int64_t i = 0; i < n; i += columns)
    for (int64_t c = 0; c < columns; ++c) out[i + c] = weight[i + c] * (grad[i + c] - static_cast<Acc>(mean[c]));
}

// ---- chunks of rows

// f(first value, values) for the rows of a chunk that have edges.
template <class F>
HALFGNN_INLINE void each_row(const Adjacency& adj, const RowChunk& chunk, int64_t columns, F f) {
  const int64_t begin = chunk.begin();
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const int64_t first = adj.indptr[row], degree = adj.indptr[row + 1] - first;
    if (degree) f((first - begin) * columns, degree * columns);
  }
}
template <class F>
HALFGNN_INLINE void with_flat_columns(int64_t columns, F f) {
  switch (columns) {
    case 1: return f(Columns<1>{1});
    case 2: return f(Columns<2>{2});
    case 4: return f(Columns<4>{4});
    case 8: return f(Columns<8>{8});
    default: return f(Columns<0>{columns});
  }
}

template <class Acc>
HALFGNN_NOINLINE void softmax_chunk(const Adjacency& adj, const RowChunk& chunk, int64_t columns, const Acc* x,
                                    Acc* out, Acc* best, double* sum) {
  if constexpr (sizeof(Acc) == 4) {
    return with_flat_columns(columns, [&](auto c) {
      each_row(adj, chunk, c.count(), [&](int64_t i, int64_t n) {
        if constexpr (decltype(c)::kCount > 0) return softmax_row<decltype(c)::kCount>(x + i, n, out + i);
        softmax_row(columns, x + i, n, out + i, best, sum);
      });
    });
  }
  each_row(adj, chunk, columns, [&](int64_t i, int64_t n) { softmax_row(columns, x + i, n, out + i, best, sum); });
}
template <class Acc>
HALFGNN_NOINLINE void softmax_gradient_chunk(const Adjacency& adj, const RowChunk& chunk, int64_t columns,
                                             const Acc* weight, const Acc* grad, Acc* out, double* mean,
                                             double* total) {
  if constexpr (sizeof(Acc) == 4) {
    return with_flat_columns(columns, [&](auto c) {
      each_row(adj, chunk, c.count(), [&](int64_t i, int64_t n) {
        if constexpr (decltype(c)::kCount > 0)
          return softmax_gradient_row<decltype(c)::kCount>(weight + i, grad + i, n, out + i);
        softmax_gradient_row(columns, weight + i, grad + i, n, out + i, mean, total);
      });
    });
  }
  each_row(adj, chunk, columns,
           [&](int64_t i, int64_t n) { softmax_gradient_row(columns, weight + i, grad + i, n, out + i, mean, total); });
}

template <class Acc, class T>
void edge_softmax_rows(const EdgeSoftmaxArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency adj(args.topology);
  EdgeChunk<Acc, T> logits(adj, args.columns);
  EdgeResultChunk<Acc, T> out(adj, args.columns, args.out);
  Buffer<Acc> best(args.columns);
  Buffer<double> sum(args.columns);
  for (RowChunk chunk(adj, row_begin, row_end, args.columns); chunk.next();) {
    const int64_t begin = chunk.begin(), end = chunk.end();
    if (begin == end) continue;
    const Acc* x = logits.load(static_cast<const T*>(args.logits), begin, end);
    softmax_chunk(adj, chunk, args.columns, x, out.open(begin, end), best.get(), sum.get());
    out.close(begin, end);
  }
}

template <class Acc, class T>
void edge_softmax_backward_rows(const EdgeSoftmaxArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency adj(args.topology);
  EdgeChunk<Acc, T> weights(adj, args.columns), grads(adj, args.columns);
  EdgeResultChunk<Acc, T> out(adj, args.columns, args.out);
  Buffer<double> mean(args.columns), total(args.columns);
  for (RowChunk chunk(adj, row_begin, row_end, args.columns); chunk.next();) {
    const int64_t begin = chunk.begin(), end = chunk.end();
    if (begin == end) continue;
    const Acc* weight = weights.load(static_cast<const T*>(args.logits), begin, end);
    const Acc* grad = grads.load(static_cast<const T*>(args.grad), begin, end);
    softmax_gradient_chunk(adj, chunk, args.columns, weight, grad, out.open(begin, end), mean.get(), total.get());
    out.close(begin, end);
  }
}

// ---- the kernels of the table

// From how many columns on an edge's row is cut into blocks. Those of fewer columns would leave lanes empty.
constexpr int64_t kLeastBlockColumns = 9;

// f(accumulator, type of elements), or the kernel that works in tiles
template <class F>
inline void with_softmax_types(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end, F f) {
  if (args.type == DType::kDouble) return f(Type<double>{}, Type<double>{});
  with_vector_type(args.type, [&](auto t) {
    if (args.columns < kLeastBlockColumns) return f(Type<float>{}, t);
    with_block<TypeOf<decltype(t)>>(args.columns, [&](auto b) { softmax_of_blocks<decltype(b)>(args, begin, end); });
  });
}
static void edge_softmax(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  with_softmax_types(args, begin, end, [&](auto a, auto t) {
    edge_softmax_rows<TypeOf<decltype(a)>, TypeOf<decltype(t)>>(args, begin, end);
  });
}
static void edge_softmax_backward(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  with_softmax_types(args, begin, end, [&](auto a, auto t) {
    edge_softmax_backward_rows<TypeOf<decltype(a)>, TypeOf<decltype(t)>>(args, begin, end);
  });
}

extern const EdgeSoftmaxKernels kEdgeSoftmax;
const EdgeSoftmaxKernels kEdgeSoftmax = {edge_softmax, edge_softmax_backward};

}  // namespace halfgnn::HALFGNN_ISA
