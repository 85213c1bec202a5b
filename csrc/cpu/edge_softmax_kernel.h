// Edge softmax on the CPU. Included once for each instruction set (see kernels_*.cpp).
#pragma once

#include "spmm_kernel.h"

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
HALFGNN_INLINE void exp_row(float* x, int64_t n, float shift) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(exp_nonpositive(load8(x + i) - splat(shift)), x + i);
  if (i < n) {
    float rest[8] = {};
    for (int64_t j = i; j < n; ++j) rest[j - i] = x[j] - shift;
    store8(exp_nonpositive(load8(rest)), rest);
    for (int64_t j = i; j < n; ++j) x[j] = rest[j - i];
  }
}
HALFGNN_INLINE void exp_row(double* x, int64_t n, double shift) {
  for (int64_t i = 0; i < n; ++i) x[i] = exp(x[i] - shift);
}

template <class Acc>
HALFGNN_INLINE Acc sum_row(const Acc* x, int64_t n) {
  Acc part[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) part[j] += x[i + j];
  for (; i < n; ++i) part[i & 7] += x[i];
  return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}
template <class Acc>
HALFGNN_INLINE Acc max_row(const Acc* x, int64_t n) {
  Acc best = x[0];
  for (int64_t i = 1; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// The edges of a row as a (columns, degree) buffer of Acc: every column contiguous, whatever the edge order.
template <class Acc, class T, class I>
class EdgeColumns {
 public:
  EdgeColumns(const Adjacency<I>& adj, int64_t columns) : adj_(adj), columns_(columns) {}
  ~EdgeColumns() { free(values_); }
  EdgeColumns(const EdgeColumns&) = delete;
  EdgeColumns& operator=(const EdgeColumns&) = delete;
  void load(const T* data, int64_t begin, int64_t end) {
    reserve((end - begin) * columns_);
    degree_ = end - begin;
    if (columns_ == 1 && !adj_.edge_ids) return decode_row(data + begin, degree_, values_);
    for (int64_t p = begin; p < end; ++p) {
      if (adj_.has(p + kPrefetchEdges)) prefetch_edge(data, adj_.edge_id(p + kPrefetchEdges), row_bytes());
      const T* row = data + adj_.edge_id(p) * columns_;
      for (int64_t c = 0; c < columns_; ++c) values_[c * degree_ + p - begin] = static_cast<Acc>(to_float(row[c]));
    }
  }
  void store(T* data, int64_t begin) const {
    if (columns_ == 1 && !adj_.edge_ids) return encode_row(values_, degree_, data + begin);
    Scratch<Acc> row(columns_);
    for (int64_t i = 0; i < degree_; ++i) {
      if (adj_.has(begin + i + kPrefetchEdges))
        prefetch_edge_for_write(data, adj_.edge_id(begin + i + kPrefetchEdges), row_bytes());
      for (int64_t c = 0; c < columns_; ++c) row[c] = values_[c * degree_ + i];
      encode_row(row.get(), columns_, data + adj_.edge_id(begin + i) * columns_);
    }
  }
  Acc* column(int64_t c) { return values_ + c * degree_; }

 private:
  int64_t row_bytes() const { return columns_ * static_cast<int64_t>(sizeof(T)); }
  void reserve(int64_t n) {
    if (n <= capacity_) return;
    free(values_);
    capacity_ = 2 * n;
    values_ = static_cast<Acc*>(malloc(static_cast<size_t>(capacity_) * sizeof(Acc)));
    if (!values_) throw std::bad_alloc();
  }
  const Adjacency<I>& adj_;
  int64_t columns_;
  int64_t degree_ = 0;
  int64_t capacity_ = 0;
  Acc* values_ = nullptr;
};

template <class Acc, class T, class I>
void edge_softmax_rows(const EdgeSoftmaxArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  EdgeColumns<Acc, T, I> edges(adj, args.columns);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1], degree = end - begin;
    if (degree == 0) continue;
    edges.load(static_cast<const T*>(args.logits), begin, end);
    for (int64_t c = 0; c < args.columns; ++c) {
      Acc* x = edges.column(c);
      exp_row(x, degree, max_row(x, degree));
      const Acc inverse = Acc(1) / sum_row(x, degree);
      for (int64_t i = 0; i < degree; ++i) x[i] *= inverse;
    }
    edges.store(static_cast<T*>(args.out), begin);
  }
}

// ds = a (da - sum(a da) / sum(a)): dividing by sum(a), which is 1 before a was rounded, makes ds sum to zero whatever
// the rounding.
template <class Acc, class T, class I>
void edge_softmax_backward_rows(const EdgeSoftmaxArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  EdgeColumns<Acc, T, I> weights(adj, args.columns), grads(adj, args.columns);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1], degree = end - begin;
    if (degree == 0) continue;
    weights.load(static_cast<const T*>(args.logits), begin, end);
    grads.load(static_cast<const T*>(args.grad), begin, end);
    for (int64_t c = 0; c < args.columns; ++c) {
      const Acc* a = weights.column(c);
      Acc* g = grads.column(c);
      const Acc total = sum_row(a, degree);
      Acc weighted = 0;
      for (int64_t i = 0; i < degree; ++i) weighted += a[i] * g[i];
      const Acc mean = total > 0 ? weighted / total : weighted;
      for (int64_t i = 0; i < degree; ++i) g[i] = a[i] * (g[i] - mean);
    }
    grads.store(static_cast<T*>(args.out), begin);
  }
}

}  // namespace HALFGNN_ISA
}  // namespace halfgnn
