// Edge softmax and its gradient, in chunks.
#pragma once

#include "chunk.h"
#include "columns.h"
#include "exp.h"
#include "kernels.h"

namespace halfgnn::HALFGNN_ISA {

// values (degree, columns) -= maximum of each column
template <class Acc, int C>
HALFGNN_INLINE void subtract_maximum(Columns<C> columns, int64_t degree, Acc* values, Acc* best) {
  const int64_t n = columns.count();
  for (int64_t c = 0; c < n; ++c) best[c] = values[c];
  for (int64_t e = 1; e < degree; ++e)
    for (int64_t c = 0; c < n; ++c) best[c] = values[e * n + c] > best[c] ? values[e * n + c] : best[c];
  for (int64_t e = 0; e < degree; ++e)
    for (int64_t c = 0; c < n; ++c) values[e * n + c] -= best[c];
}
// values /= sum of each column. Sums are fp64 (see RunningSum).
template <class Acc, int C>
HALFGNN_INLINE void normalise(Columns<C> columns, int64_t degree, Acc* values, double* sum) {
  const int64_t n = columns.count();
  for (int64_t c = 0; c < n; ++c) sum[c] = 0;
  for (int64_t e = 0; e < degree; ++e)
    for (int64_t c = 0; c < n; ++c) sum[c] += values[e * n + c];
  for (int64_t c = 0; c < n; ++c) sum[c] = 1 / sum[c];
  for (int64_t e = 0; e < degree; ++e)
    for (int64_t c = 0; c < n; ++c) values[e * n + c] *= static_cast<Acc>(sum[c]);
}
// grad = weight (grad - sum(weight grad) / sum(weight)), column by column. sum(weight) was 1 before the weights were
// rounded; dividing by it makes the result sum to zero whatever the rounding. work: 2 * columns values.
template <class Acc, int C>
HALFGNN_INLINE void softmax_gradient(Columns<C> columns, int64_t degree, const Acc* weight, Acc* grad, double* work) {
  const int64_t n = columns.count();
  double *mean = work, *total = work + n;
  for (int64_t c = 0; c < 2 * n; ++c) work[c] = 0;
  for (int64_t e = 0; e < degree; ++e)
    for (int64_t c = 0; c < n; ++c) {
      mean[c] += weight[e * n + c] * grad[e * n + c];
      total[c] += weight[e * n + c];
    }
  for (int64_t c = 0; c < n; ++c) mean[c] = total[c] > 0 ? mean[c] / total[c] : mean[c];
  for (int64_t e = 0; e < degree; ++e)
    for (int64_t c = 0; c < n; ++c) grad[e * n + c] = weight[e * n + c] * (grad[e * n + c] - static_cast<Acc>(mean[c]));
}

template <class Acc, class T, class I>
void edge_softmax_rows(const EdgeSoftmaxArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  EdgeChunk<Acc, T, I> values(adj, args.columns);
  Buffer<Acc> best(args.columns);
  Buffer<double> sum(args.columns);
  for (RowChunk<I> chunk(adj, row_begin, row_end, args.columns); chunk.next();) {
    if (chunk.begin() == chunk.end()) continue;
    values.load(static_cast<const T*>(args.logits), chunk.begin(), chunk.end());
    const auto each_row = [&](auto per_row) {
      for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
        const int64_t degree = adj.indptr[row + 1] - adj.indptr[row];
        if (degree) per_row(degree, values.at(adj.indptr[row]));
      }
    };
    with_columns(args.columns, [&](auto columns) {
      each_row([&](int64_t degree, Acc* x) { subtract_maximum(columns, degree, x, best.get()); });
      exp_values(values.at(chunk.begin()), (chunk.end() - chunk.begin()) * args.columns);
      each_row([&](int64_t degree, Acc* x) { normalise(columns, degree, x, sum.get()); });
    });
    values.store(static_cast<T*>(args.out), chunk.begin(), chunk.end());
  }
}

template <class Acc, class T, class I>
void edge_softmax_backward_rows(const EdgeSoftmaxArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  EdgeChunk<Acc, T, I> weights(adj, args.columns), grads(adj, args.columns);
  Buffer<double> work(2 * args.columns);
  for (RowChunk<I> chunk(adj, row_begin, row_end, args.columns); chunk.next();) {
    if (chunk.begin() == chunk.end()) continue;
    weights.load(static_cast<const T*>(args.logits), chunk.begin(), chunk.end());
    grads.load(static_cast<const T*>(args.grad), chunk.begin(), chunk.end());
    with_columns(args.columns, [&](auto columns) {
      for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
        const int64_t begin = adj.indptr[row], degree = adj.indptr[row + 1] - begin;
        if (degree) softmax_gradient(columns, degree, weights.at(begin), grads.at(begin), work.get());
      }
    });
    grads.store(static_cast<T*>(args.out), chunk.begin(), chunk.end());
  }
}

// ---- the kernels of the table

// f(accumulator, type of elements, type of ids)
template <class F>
inline void with_softmax_types(const EdgeSoftmaxArgs& args, F f) {
  with_index(args.topology.is_int64, [&](auto i) {
    if (args.type == DType::kDouble) return f(Type<double>{}, Type<double>{}, i);
    with_vector_type(args.type, [&](auto t) { f(Type<float>{}, t, i); });
  });
}
static void edge_softmax(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  with_softmax_types(args, [&](auto a, auto t, auto i) {
    edge_softmax_rows<TypeOf<decltype(a)>, TypeOf<decltype(t)>, TypeOf<decltype(i)>>(args, begin, end);
  });
}
static void edge_softmax_backward(const EdgeSoftmaxArgs& args, int64_t begin, int64_t end) {
  with_softmax_types(args, [&](auto a, auto t, auto i) {
    edge_softmax_backward_rows<TypeOf<decltype(a)>, TypeOf<decltype(t)>, TypeOf<decltype(i)>>(args, begin, end);
  });
}

extern const EdgeSoftmaxKernels kEdgeSoftmax;
const EdgeSoftmaxKernels kEdgeSoftmax = {edge_softmax, edge_softmax_backward};

}  // namespace halfgnn::HALFGNN_ISA
