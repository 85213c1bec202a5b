// Sums over an edge list that is not sorted, and their gradients. A sum is made in the order of the edges, and each
// product and each addition is rounded, as PyTorch's index_select, mul and scatter_add do it: results have the same
// bits.
#pragma once

#include "kernels.h"
#include "move_rows.h"
#include "rows.h"
#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

// A product that the compiler does not contract with the addition behind it.
template <class V>
HALFGNN_INLINE V rounded(V product) {
#if defined(HALFGNN_F16C)
  if constexpr (sizeof(V) <= (HALFGNN_LANES > 8 ? 64 : 32)) asm("" : "+v"(product));
#elif defined(__aarch64__)
  if constexpr (sizeof(V) <= 16) asm("" : "+w"(product));
#endif
  return product;
}

// Vectors that are longer than registers cannot be held as a product, so rows are taken apart into these.
#if defined(HALFGNN_AVX512)
constexpr int kRowLanes = 16;
#elif defined(HALFGNN_F16C)
constexpr int kRowLanes = 8;
#else
constexpr int kRowLanes = 4;
#endif
typedef float RowFloats __attribute__((vector_size(4 * kRowLanes)));
typedef double RowDoubles __attribute__((vector_size(4 * kRowLanes)));
template <class T>
using RowVector = std::conditional_t<sizeof(T) == 8, RowDoubles, RowFloats>;
template <class T>
constexpr int64_t kStep = sizeof(RowVector<T>) / sizeof(T);

template <class T>
HALFGNN_INLINE void store_vector(const RowVector<T>& v, T* out) {
  memcpy(out, &v, sizeof(v));
}

// sum += row, or row weight
template <bool kWeighted, class T>
HALFGNN_INLINE void add_row(const T* row, T weight, int64_t begin, int64_t end, T* sum) {
  using V = RowVector<T>;
  int64_t i = begin;
  for (; i + kStep<T> <= end; i += kStep<T>) {
    V x = load_unaligned<V>(row + i);
    if constexpr (kWeighted) x = rounded(x * weight);
    store_vector<T>(load_unaligned<V>(sum + i) + x, sum + i);
  }
  for (; i < end; ++i) sum[i] += kWeighted ? rounded(row[i] * weight) : row[i];
}

// relu, and its gradient: NaN stays NaN, and passes gradients on, as in PyTorch.
template <class V>
HALFGNN_INLINE V relu(V x) {
  return x < 0 ? V{} : x;
}
template <class V>
HALFGNN_INLINE V relu_gradient(V x, V grad) {
  return x <= 0 ? V{} : grad;
}

// f(edge, its row, its column) for one edge after the other.
template <class F>
HALFGNN_INLINE void each_edge(const EdgeList& edges, int64_t begin, int64_t end, F f) {
  with_index(edges.is_int64, [&](auto i) {
    const auto* row = static_cast<const TypeOf<decltype(i)>*>(edges.row);
    const auto* col = static_cast<const TypeOf<decltype(i)>*>(edges.col);
    for (int64_t e = begin; e < end; ++e) f(e, row ? int64_t{row[e]} : e, col ? int64_t{col[e]} : e);
  });
}

// sum += row + addend, or its relu
template <bool kRelu, class T>
HALFGNN_INLINE void add_row_of_sum(const T* row, const T* addend, int64_t begin, int64_t end, T* sum) {
  using V = RowVector<T>;
  int64_t i = begin;
  for (; i + kStep<T> <= end; i += kStep<T>) {
    const V x = load_unaligned<V>(row + i) + load_unaligned<V>(addend + i);
    store_vector<T>(load_unaligned<V>(sum + i) + (kRelu ? relu(x) : x), sum + i);
  }
  for (; i < end; ++i) sum[i] += kRelu ? relu(row[i] + addend[i]) : row[i] + addend[i];
}

template <bool kRelu, class T>
HALFGNN_NOINLINE void add_rows_of_sums(const CooSumArgs& given, int64_t begin, int64_t end) {
  const CooSumArgs args = given;  // which no store can change
  const auto *feat = static_cast<const T*>(args.feat), *addend = static_cast<const T*>(args.addend);
  auto* out = static_cast<T*>(args.out);
  each_edge(args.edges, 0, args.edges.num_edges, [&](int64_t e, int64_t row, int64_t col) {
    add_row_of_sum<kRelu>(feat + col * args.dim, addend + e * args.dim, begin, end, out + row * args.dim);
  });
}

// of_sum = the gradient of relu(row + addend), and of_row += it. Either may be null.
template <class T>
HALFGNN_INLINE void differentiate_relu_row(const T* row, const T* addend, const T* grad, int64_t begin, int64_t end,
                                           T* of_row, T* of_sum) {
  using V = RowVector<T>;
  int64_t i = begin;
  for (; i + kStep<T> <= end; i += kStep<T>) {
    const V x = load_unaligned<V>(row + i) + load_unaligned<V>(addend + i);
    const V passed = relu_gradient(x, load_unaligned<V>(grad + i));
    if (of_row) store_vector<T>(load_unaligned<V>(of_row + i) + passed, of_row + i);
    if (of_sum) store_vector<T>(passed, of_sum + i);
  }
  for (; i < end; ++i) {
    const T passed = relu_gradient(row[i] + addend[i], grad[i]);
    if (of_row) of_row[i] += passed;
    if (of_sum) of_sum[i] = passed;
  }
}

template <class T>
HALFGNN_NOINLINE void differentiate_relu_rows(const CooReluBackwardArgs& given, int64_t begin, int64_t end) {
  const CooReluBackwardArgs args = given;
  const auto *feat = static_cast<const T*>(args.feat), *addend = static_cast<const T*>(args.addend);
  const auto* grad = static_cast<const T*>(args.grad);
  auto *grad_feat = static_cast<T*>(args.grad_feat), *grad_addend = static_cast<T*>(args.grad_addend);
  each_edge(args.edges, 0, args.edges.num_edges, [&](int64_t e, int64_t row, int64_t col) {
    const int64_t at_col = col * args.dim, at_edge = e * args.dim;
    differentiate_relu_row(feat + at_col, addend + at_edge, grad + row * args.dim, begin, end,
                           grad_feat ? grad_feat + at_col : nullptr, grad_addend ? grad_addend + at_edge : nullptr);
  });
}

// The columns [begin, end) of both gradients.
static void coo_relu_backward(const CooReluBackwardArgs& args, int64_t begin, int64_t end) {
  args.is_double ? differentiate_relu_rows<double>(args, begin, end) : differentiate_relu_rows<float>(args, begin, end);
}

template <bool kWeighted, class T>
HALFGNN_NOINLINE void add_rows(const CooSumArgs& given, int64_t begin, int64_t end) {
  const CooSumArgs args = given;
  const auto *feat = static_cast<const T*>(args.feat), *weight = static_cast<const T*>(args.weight);
  auto* out = static_cast<T*>(args.out);
  each_edge(args.edges, 0, args.edges.num_edges, [&](int64_t e, int64_t row, int64_t col) {
    add_row<kWeighted>(feat + col * args.dim, kWeighted ? weight[e] : T{1}, begin, end, out + row * args.dim);
  });
}

template <class T>
HALFGNN_INLINE void add_edges(const CooSumArgs& args, int64_t begin, int64_t end) {
  if (args.addend != nullptr)
    return args.has_relu ? add_rows_of_sums<true, T>(args, begin, end) : add_rows_of_sums<false, T>(args, begin, end);
  return args.weight != nullptr ? add_rows<true, T>(args, begin, end) : add_rows<false, T>(args, begin, end);
}

// The columns [begin, end) of the sum.
static void coo_sum(const CooSumArgs& args, int64_t begin, int64_t end) {
  args.is_double ? add_edges<double>(args, begin, end) : add_edges<float>(args, begin, end);
}

// The rows of the edges [begin, end).
static void coo_gather(const CooGatherArgs& args, int64_t begin, int64_t end) {
  with_index(args.is_int64, [&](auto i) {
    const auto* ids = static_cast<const TypeOf<decltype(i)>*>(args.ids);
    char* out = static_cast<char*>(args.out) + begin * args.row_bytes;
    gather_moves(args.feat, ids + begin, end - begin, args.row_bytes, out);
  });
}

template <class T>
HALFGNN_INLINE T dot(const T* x, const T* y, int64_t n) {
  using V = RowVector<T>;
  V sums[2] = {};
  int64_t i = 0;
  for (; i + 2 * kStep<T> <= n; i += 2 * kStep<T>)
    for (int k = 0; k < 2; ++k)
      sums[k] += load_unaligned<V>(x + i + k * kStep<T>) * load_unaligned<V>(y + i + k * kStep<T>);
  const V of_lanes = sums[0] + sums[1];
  T sum = 0;
  for (int lane = 0; lane < kStep<T>; ++lane) sum += of_lanes[lane];
  for (; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

template <class T>
HALFGNN_NOINLINE void dot_rows(const CooDotArgs& args, int64_t begin, int64_t end) {
  const auto *lhs = static_cast<const T*>(args.lhs), *rhs = static_cast<const T*>(args.rhs);
  each_edge(args.edges, begin, end, [&](int64_t e, int64_t row, int64_t col) {
    static_cast<T*>(args.out)[e] = dot(lhs + row * args.dim, rhs + col * args.dim, args.dim);
  });
}

// The products of the edges [begin, end).
static void coo_dot(const CooDotArgs& args, int64_t begin, int64_t end) {
  args.is_double ? dot_rows<double>(args, begin, end) : dot_rows<float>(args, begin, end);
}

template <class T>
HALFGNN_NOINLINE void divide_rows_of(const DivideRowsArgs& args, int64_t begin, int64_t end) {
  using V = RowVector<T>;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t count = args.counts[row] > 1 ? args.counts[row] : 1, at = row * args.dim;
    const auto divisor = static_cast<T>(count);
    const T* x = static_cast<const T*>(args.rows) + at;
    T* out = static_cast<T*>(args.out) + at;
    const bool is_power = (count & (count - 1)) == 0;  // of two, whose reciprocal is exact
    const T factor = T{1} / divisor;
    int64_t i = 0;
    if (is_power) {
      for (; i + kStep<T> <= args.dim; i += kStep<T>) store_vector<T>(load_unaligned<V>(x + i) * factor, out + i);
    } else {
      for (; i + kStep<T> <= args.dim; i += kStep<T>) store_vector<T>(load_unaligned<V>(x + i) / divisor, out + i);
    }
    for (; i < args.dim; ++i) out[i] = x[i] / divisor;
  }
}

static void divide_rows(const DivideRowsArgs& args, int64_t begin, int64_t end) {
  args.is_double ? divide_rows_of<double>(args, begin, end) : divide_rows_of<float>(args, begin, end);
}

extern const CooSumKernels kCooSum;
const CooSumKernels kCooSum = {coo_sum, coo_gather, coo_dot, coo_relu_backward, divide_rows};

}  // namespace halfgnn::HALFGNN_ISA
