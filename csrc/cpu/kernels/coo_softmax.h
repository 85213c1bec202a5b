// Softmax over the edges of each row of an edge list that is not sorted, and its gradient.
#pragma once

#include <math.h>

#include <type_traits>

#include "exp.h"
#include "kernels.h"
#include "rows.h"

namespace halfgnn::HALFGNN_ISA {

// L columns at once: a vector, or a number. Most logits have few columns, one per head.
template <class T, int L>
struct ColumnsOf {
  typedef T V __attribute__((vector_size(sizeof(T) * L)));
};
template <class T>
struct ColumnsOf<T, 1> {
  typedef T V;
};
template <class V, class T>
HALFGNN_INLINE V columns_at(const T* x) {
  V v;
  memcpy(&v, x, sizeof(V));
  return v;
}
template <class T, class V>
HALFGNN_INLINE void set_columns(V v, T* x) {
  memcpy(x, &v, sizeof(V));
}

// f(place in tensors of rows, place in tensors of edges) of every L columns of every edge.
template <int L, class F>
HALFGNN_INLINE void each_edge(const CooSoftmaxArgs& args, F f) {
  const int64_t num_edges = args.num_edges, dim = args.dim;
  with_index(args.is_int64, [&](auto i) {
    const auto* row = static_cast<const TypeOf<decltype(i)>*>(args.row);
    for (int64_t e = 0; e < num_edges; ++e)
      for (int64_t k = 0; k < dim; k += L) f(row[e] * dim + k, e * dim + k);
  });
}

template <class T, int L>
HALFGNN_NOINLINE void weigh_edges(const CooSoftmaxArgs& args) {
  using V = typename ColumnsOf<T, L>::V;
  const auto* logits = static_cast<const T*>(args.logits);
  const int64_t num_values = args.num_rows * args.dim;
  T *largest = static_cast<T*>(args.of_rows), *sum = largest + num_values, *out = static_cast<T*>(args.out);
  for (int64_t i = 0; i < num_values; ++i) largest[i] = -static_cast<T>(INFINITY), sum[i] = 0;
  // NaN is passed over: a distance from the largest keeps it.
  each_edge<L>(args, [&](int64_t at_row, int64_t at_edge) {
    const V x = columns_at<V>(logits + at_edge), best = columns_at<V>(largest + at_row);
    set_columns(x > best ? x : best, largest + at_row);
  });
  each_edge<L>(args, [&](int64_t at_row, int64_t at_edge) {
    set_columns(columns_at<V>(logits + at_edge) - columns_at<V>(largest + at_row), out + at_edge);
  });
  exp_values(out, args.num_edges * args.dim);
  each_edge<L>(args, [&](int64_t at_row, int64_t at_edge) {
    set_columns(columns_at<V>(sum + at_row) + columns_at<V>(out + at_edge), sum + at_row);
  });
  each_edge<L>(args, [&](int64_t at_row, int64_t at_edge) {
    set_columns(columns_at<V>(out + at_edge) / columns_at<V>(sum + at_row), out + at_edge);
  });
}

// The sum of the weights of a row, which is not 1 if they were rounded, divides that of their gradients: so gradients
// of logits sum to zero over the edges of a row.
template <class T, int L>
HALFGNN_NOINLINE void differentiate_weights(const CooSoftmaxBackwardArgs& given) {
  using V = typename ColumnsOf<T, L>::V;
  const CooSoftmaxArgs& args = given.forward;
  const auto *softmax = static_cast<const T*>(given.softmax), *grad = static_cast<const T*>(given.grad);
  const int64_t num_values = args.num_rows * args.dim;
  T *mean = static_cast<T*>(args.of_rows), *sum = mean + num_values, *out = static_cast<T*>(args.out);
  for (int64_t i = 0; i < num_values; ++i) mean[i] = 0, sum[i] = 0;
  each_edge<L>(args, [&](int64_t at_row, int64_t at_edge) {
    const V weight = columns_at<V>(softmax + at_edge);
    set_columns(columns_at<V>(mean + at_row) + weight * columns_at<V>(grad + at_edge), mean + at_row);
    set_columns(columns_at<V>(sum + at_row) + weight, sum + at_row);
  });
  for (int64_t i = 0; i < num_values; ++i) mean[i] = sum[i] == 0 ? 0 : mean[i] / sum[i];
  each_edge<L>(args, [&](int64_t at_row, int64_t at_edge) {
    const V distance = columns_at<V>(grad + at_edge) - columns_at<V>(mean + at_row);
    set_columns(columns_at<V>(softmax + at_edge) * distance, out + at_edge);
  });
}

// f of the widest vector that divides the columns.
template <class F>
HALFGNN_INLINE void with_columns(int64_t dim, F f) {
  if (dim % 8 == 0) return f(std::integral_constant<int, 8>{});
  if (dim % 4 == 0) return f(std::integral_constant<int, 4>{});
  if (dim % 2 == 0) return f(std::integral_constant<int, 2>{});
  return f(std::integral_constant<int, 1>{});
}

static void coo_softmax(const CooSoftmaxArgs& args) {
  if (args.is_double) return weigh_edges<double, 1>(args);
  with_columns(args.dim, [&](auto n) { weigh_edges<float, decltype(n)::value>(args); });
}

static void coo_softmax_backward(const CooSoftmaxBackwardArgs& args) {
  if (args.forward.is_double) return differentiate_weights<double, 1>(args);
  with_columns(args.forward.dim, [&](auto n) { differentiate_weights<float, decltype(n)::value>(args); });
}

extern const CooSoftmaxKernels kCooSoftmax;
const CooSoftmaxKernels kCooSoftmax = {coo_softmax, coo_softmax_backward};

}  // namespace halfgnn::HALFGNN_ISA
