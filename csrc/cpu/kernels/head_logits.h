// Logits of nodes, <attn, feat> for each head, and their gradients.
#pragma once

#include "kernels.h"
#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

// Heads of GAT are short: 8 values fill such a vector in every instruction set.
constexpr int64_t kHeadStep = 8;
using HeadVector = FloatsOf<kHeadStep>;

// The n < kHeadStep values at p, and zeros.
template <class E>
HALFGNN_INLINE HeadVector load_first(const E* p, int64_t n) {
  E values[kHeadStep] = {};
  for (int64_t i = 0; i < n; ++i) values[i] = p[i];
  return load_vector<kHeadStep>(values);
}
template <class E>
HALFGNN_INLINE void store_first(HeadVector v, E* p, int64_t n) {
  E values[kHeadStep];
  store_vector(v, values);
  for (int64_t i = 0; i < n; ++i) p[i] = values[i];
}
// f(i, load, store) for the vectors of a head: load(p) reads those at p + i, store(v, p) writes them.
template <class F>
HALFGNN_INLINE void each_head_vector(int64_t dim, F f) {
  int64_t i = 0;
  for (; i + kHeadStep <= dim; i += kHeadStep)
    f([i](auto* p) { return load_vector<kHeadStep>(p + i); }, [i](HeadVector v, auto* p) { store_vector(v, p + i); });
  if (const int64_t left = dim - i; left > 0)
    f([i, left](auto* p) { return load_first(p + i, left); },
      [i, left](HeadVector v, auto* p) { store_first(v, p + i, left); });
}

template <class T>
HALFGNN_INLINE float head_dot(const T* x, const float* attn, int64_t dim) {
  HeadVector sum{};
  each_head_vector(dim, [&](auto load, auto) { sum += load(x) * load(attn); });
  return sum_lanes(sum);
}
HALFGNN_INLINE double head_dot(const double* x, const double* attn, int64_t dim) {
  double sum = 0;
  for (int64_t i = 0; i < dim; ++i) sum += x[i] * attn[i];
  return sum;
}

template <class T, class Acc>
static void forward_rows(const HeadLogitsArgs& args, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(args.feat) + begin * args.heads * args.dim;
  for (int64_t i = begin * args.heads; i < end * args.heads; i += args.heads)
    for (int64_t h = 0; h < args.heads; ++h, x += args.dim)
      for (int a = 0; a < args.count; ++a)
        static_cast<Acc*>(args.logits[a])[i + h] =
            head_dot(x, static_cast<const Acc*>(args.attn[a]) + h * args.dim, args.dim);
}

// One head of a row; pointers are to its values, and may be null as those of HeadLogitsBackwardArgs.
template <class T, class Acc>
struct HeadGradient {
  const T* x;
  const T* upstream;
  T* grad_feat;
  const Acc* attn[kMostHeadLogits];
  Acc* part[kMostHeadLogits];
  Acc grad[kMostHeadLogits];
  int count;
};
template <class T>
HALFGNN_INLINE void add_gradient(const HeadGradient<T, float>& head, int64_t dim) {
  each_head_vector(dim, [&](auto load, auto store) {
    if (head.grad_feat) {
      HeadVector sum = head.upstream ? load(head.upstream) : HeadVector{};
      for (int a = 0; a < head.count; ++a) sum += head.grad[a] * load(head.attn[a]);
      store(sum, head.grad_feat);
    }
    if (!head.part[0]) return;
    const HeadVector x = load(head.x);
    for (int a = 0; a < head.count; ++a) store(load(head.part[a]) + head.grad[a] * x, head.part[a]);
  });
}
HALFGNN_INLINE void add_gradient(const HeadGradient<double, double>& head, int64_t dim) {
  for (int64_t i = 0; i < dim; ++i) {
    double sum = head.upstream ? head.upstream[i] : 0;
    for (int a = 0; a < head.count; ++a) {
      sum += head.grad[a] * head.attn[a][i];
      if (head.part[0]) head.part[a][i] += head.grad[a] * head.x[i];
    }
    if (head.grad_feat) head.grad_feat[i] = sum;
  }
}

template <class T, class Acc>
static void backward_rows(const HeadLogitsBackwardArgs& args, Acc* part, int64_t begin, int64_t end) {
  const int64_t len = args.heads * args.dim;
  if (part)
    for (int64_t i = 0; i < args.count * len; ++i) part[i] = 0;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t h = 0; h < args.heads; ++h) {
      const int64_t first = row * len + h * args.dim;
      HeadGradient<T, Acc> head{};
      head.x = static_cast<const T*>(args.feat) + first;
      head.upstream = args.upstream ? static_cast<const T*>(args.upstream) + first : nullptr;
      head.grad_feat = args.grad_feat ? static_cast<T*>(args.grad_feat) + first : nullptr;
      head.count = args.count;
      for (int a = 0; a < args.count; ++a) {
        head.attn[a] = static_cast<const Acc*>(args.attn[a]) + h * args.dim;
        head.part[a] = part ? part + a * len + h * args.dim : nullptr;
        head.grad[a] = args.grad[a] ? static_cast<const Acc*>(args.grad[a])[row * args.heads + h] : 0;
      }
      add_gradient(head, args.dim);
    }
  }
}

template <class T>
using AccumulatorOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

static void forward(const HeadLogitsArgs& args, int64_t begin, int64_t end) {
  with_type(args.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    forward_rows<T, AccumulatorOf<T>>(args, begin, end);
  });
}
static void backward(const HeadLogitsBackwardArgs& args, void* part, int64_t begin, int64_t end) {
  with_type(args.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    using Acc = AccumulatorOf<T>;
    backward_rows<T, Acc>(args, static_cast<Acc*>(part), begin, end);
  });
}

extern const HeadLogitsKernels kHeadLogits;
const HeadLogitsKernels kHeadLogits = {forward, backward};

}  // namespace halfgnn::HALFGNN_ISA
