// Edge softmax on the CPU. Included once for each instruction set (see kernels_impl.h).
#pragma once

#include "chunk.h"

#include <math.h>

namespace halfgnn {
namespace HALFGNN_ISA {

// exp for x <= 0: 2^n * 2^f with f in [-1/2, 1/2], the polynomial of Cephes' expf (relative error below 1e-7). Below
// -87.3, where the result leaves the normal numbers, 0; NaN stays NaN.
HALFGNN_INLINE f32x8 exp_nonpositive(f32x8 x) {
  const f32x8 low = splat(-87.33654f);
  const u32x8 tiny = bit_cast<u32x8>(x < low);
  const f32x8 clamped = select(tiny, low, x);
  const f32x8 magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  const f32x8 n = (clamped * splat(1.44269504f) + magic) - magic;
  const f32x8 r = (clamped - n * splat(0.693359375f)) - n * splat(-2.12194440e-4f);
  f32x8 y = splat(1.9875691500e-4f);
  y = y * r + splat(1.3981999507e-3f);
  y = y * r + splat(8.3334519073e-3f);
  y = y * r + splat(4.1665795894e-2f);
  y = y * r + splat(1.6666665459e-1f);
  y = y * r + splat(5.0000001201e-1f);
  y = y * (r * r) + r + splat(1.f);
  const u32x8 power = bit_cast<u32x8>(__builtin_convertvector(n, i32x8) + 127) << 23;
  const f32x8 result = select(tiny, splat(0.f), y * bit_cast<f32x8>(power));
  const u32x8 is_nan = bit_cast<u32x8>(x != x);
  return select(is_nan, x, result);
}
HALFGNN_INLINE void exp_values(float* x, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(exp_nonpositive(load8(x + i)), x + i);
  if (i == n) return;
  float rest[8] = {};
  for (int64_t j = i; j < n; ++j) rest[j - i] = x[j];
  store8(exp_nonpositive(load8(rest)), rest);
  for (int64_t j = i; j < n; ++j) x[j] = rest[j - i];
}
HALFGNN_INLINE void exp_values(double* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = exp(x[i]);
}

// The columns (heads) of a row's edges side by side: C of them, or `runtime` where C is 0.
template <int C>
struct Columns {
  int64_t runtime;
  HALFGNN_INLINE int64_t count() const { return C ? C : runtime; }
};
template <class F>
HALFGNN_INLINE void with_columns(int64_t columns, F f) {
  switch (columns) {
    case 1: return f(Columns<1>{1});
    case 4: return f(Columns<4>{4});
    case 8: return f(Columns<8>{8});
    default: return f(Columns<0>{columns});
  }
}

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
// grad = weight (grad - sum(weight grad) / sum(weight)), column by column; work: 2 * columns. Dividing by sum(weight),
// which is 1 before the weights were rounded, makes the result sum to zero whatever the rounding.
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
  Scratch<Acc> best(args.columns);
  Scratch<double> sum(args.columns);
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
  Scratch<double> work(2 * args.columns);
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

}  // namespace HALFGNN_ISA
}  // namespace halfgnn
