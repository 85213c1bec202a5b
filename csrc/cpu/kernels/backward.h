// Gradients of SpMM and SDDMM: both gradients of a weighted sum in one pass (vector kernel), and any gradient
// (general).
#pragma once

#include "dot_row.h"
#include "edge_window.h"
#include "kernels.h"
#include "message.h"
#include "rows.h"
#include "running_sum.h"

namespace halfgnn::HALFGNN_ISA {

// ---- a weighted sum of rows of at least 8 elements per head

// sum += weight_k grad_k and dots_k = <x, grad_k>, head by head, reading each grad_k once.
template <class B, int K>
HALFGNN_INLINE void add_and_dot_rows(const Blocks<B>& blocks, const float* x, const typename B::V& mask,
                                     const typename B::Element* const* grads, const float* weight, float* sum,
                                     float* dots) {
  using V = typename B::V;
  const int64_t whole = blocks.overlap() ? blocks.per_head - 1 : blocks.per_head;
  for (int64_t h = 0; h < blocks.heads; ++h) {
    typename B::Weight w[K];
    Lanes<1, B::L> dot[K] = {};
    for (int k = 0; k < K; ++k) w[k] = B::weight(weight[k * blocks.heads + h]);
    auto add_block = [&](int64_t b, auto masked) {
      const int64_t slot = blocks.slot(h, b), offset = blocks.offset(h, b);
      const V own = B::load_acc(x + slot);
      V total = B::load_acc(sum + slot);
      for (int k = 0; k < K; ++k) {
        const V g = B::load(grads[k] + offset);
        total = multiply_add(w[k], g, total);
        dot[k] = add_dot(own, masked() ? keep(g, mask) : g, dot[k]);
      }
      B::store_acc(total, sum + slot);
    };
    for (int64_t b = 0; b < whole; ++b) add_block(b, [] { return false; });
    if (whole < blocks.per_head) add_block(whole, [] { return true; });
    if constexpr (K == 4) {
      store_four_sums(dot, dots + h, blocks.heads);
    } else {
      for (int k = 0; k < K; ++k) dots[k * blocks.heads + h] = sum_lanes(dot[k].v[0]);
    }
  }
}

// The same for a run of edges.
template <class B>
HALFGNN_NOINLINE void add_and_dot_run(const Blocks<B>& shape, const float* x, const typename B::V& mask,
                                      const typename B::Element* const* grads, int64_t count, const float* weight,
                                      float* sum, float* dots) {
  const Blocks<B> blocks = shape;  // which no store can change
  const int64_t heads = blocks.heads;
  int64_t k = 0;
  for (; k + kBatch <= count; k += kBatch) {
    for (int64_t ahead = k; ahead < k + kBatch; ++ahead) prefetch_row(grads[ahead + kRowsAhead], blocks.len());
    add_and_dot_rows<B, kBatch>(blocks, x, mask, grads + k, weight + k * heads, sum, dots + k * heads);
  }
  for (; k < count; ++k) {
    prefetch_row(grads[k + kRowsAhead], blocks.len());
    add_and_dot_rows<B, 1>(blocks, x, mask, grads + k, weight + k * heads, sum, dots + k * heads);
  }
}

// Prefetches what store_edges() writes, if it is scattered.
HALFGNN_NOINLINE inline void prefetch_edges_for_write(const Adjacency& adj, int64_t begin, int64_t count, int64_t bytes,
                                                      void* out) {
  if (!adj.edge_ids) return;
  adj.edge_ids.resolve([&](const auto* ids) {
    for (int64_t k = 0; k < count; ++k) prefetch_edge_for_write(out, ids[begin + k], bytes);
  });
}
// Stores the gradients of the weights of the edges [begin, begin + count), rounded to W.
template <class W>
HALFGNN_NOINLINE void store_edges(const Adjacency& adj, int64_t begin, int64_t count, int64_t heads,
                                  const float* values, W* rounded, W* out) {
  if (!adj.edge_ids) return encode_row(values, count * heads, out + begin * heads);
  encode_row(values, count * heads, rounded);
  adj.edge_ids.resolve([&](const auto* ids) {
    for (int64_t k = 0; k < count; ++k)
      for (int64_t h = 0; h < heads; ++h) out[ids[begin + k] * heads + h] = rounded[k * heads + h];
  });
}

// Blocks are cut for the type of grad. T is the type of feat, which is decoded once per row, and of grad_feat.
template <class B, class T, class W>
void mul_backward_rows(const MulBackwardArgs& args, int64_t row_begin, int64_t row_end) {
  using G = typename B::Element;
  const Adjacency adj(args.topology);
  const Blocks<B> blocks(args.heads, args.dim);
  const int64_t len = blocks.len(), heads = args.heads;
  const T* feat = static_cast<const T*>(args.feat);
  W* grad_weight = static_cast<W*>(args.grad_weight);
  const InverseDegrees<float> scale(args.mean_indptr, args.topology);
  EdgeWindow<G, W> edges(adj, static_cast<const G*>(args.grad), len, false, static_cast<const W*>(args.weight), scale,
                         heads);
  DotRow<B, T> x(blocks);
  const typename B::V mask = B::tail_mask(blocks.overlap());
  RunningSum<float> sums(blocks.workspace());
  Buffer<float> dots(kRun * heads);
  Buffer<W> rounded(kRun * heads);

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    float* sum = sums.start();
    if (begin < end) x.set(feat + row * len);
    for (int64_t p = begin; p < end; p += kRun) {
      const int64_t count = end - p < kRun ? end - p : kRun;
      edges.hold(p, count);
      prefetch_edges_for_write(adj, p, count, heads * static_cast<int64_t>(sizeof(W)), grad_weight);
      add_and_dot_run(blocks, x.lanes(), mask, edges.rows(p), count, edges.weights(p), sum, dots);
      sums.added(count);
      if (scale)
        for (int64_t i = 0; i < count * heads; ++i) dots[i] *= scale[adj.column(p + i / heads)];
      store_edges(adj, p, count, heads, dots.get(), rounded.get(), grad_weight);
    }
    store_scaled(blocks, sums.finish(), 1.f, static_cast<T*>(args.grad_feat) + row * len);
  }
}

// ---- any operator, broadcast and type

// d message / d side, times the gradient. Elements of the message are numbered as in Broadcast. Every step is known to
// the compiler: a loop of single stores would also delay the vectors that are loaded from them.
template <int kOut, class Acc, class F>
HALFGNN_INLINE void combine_gradient_of_step(const Broadcast& b, const Acc* grad, const Acc* lhs, const Acc* rhs,
                                             Acc* out, F f) {
  with_steps(b.lhs_step, b.rhs_step, [&](auto steps) {
    using S = decltype(steps);
    for (int64_t o = 0; o < b.outer; ++o) {
      const Acc* g = grad + b.out_offset[o];
      const Acc* l = lhs + b.lhs_offset[o];
      const Acc* r = rhs + b.rhs_offset[o];
      Acc* m = out + o * b.inner;
      for (int64_t i = 0; i < b.inner; ++i) m[i] = f(g[i * kOut], l[i * S::kLhs], r[i * S::kRhs]);
    }
  });
}
template <class Acc, class F>
HALFGNN_INLINE void combine_gradient(const Broadcast& b, const Acc* grad, const Acc* lhs, const Acc* rhs, Acc* out,
                                     F f) {
  if (b.out_step) return combine_gradient_of_step<1>(b, grad, lhs, rhs, out, f);
  combine_gradient_of_step<0>(b, grad, lhs, rhs, out, f);
}
template <class Acc>
inline void form_gradient(Op op, Side side, const Broadcast& b, const Acc* grad, const Acc* lhs, const Acc* rhs,
                          Acc* out) {
  // An operand that the formula does not read may be absent. Another one stands in for it, taken by reference and not
  // read.
  const bool lhs_side = side == Side::kLhs;
  switch (op) {
    case Op::kMul:
    case Op::kDot:
      if (lhs_side)
        return combine_gradient(b, grad, rhs, rhs, out, [](Acc g, const Acc&, const Acc& r) { return g * r; });
      return combine_gradient(b, grad, lhs, lhs, out, [](Acc g, const Acc& l, const Acc&) { return g * l; });
    case Op::kDiv:
      if (lhs_side)
        return combine_gradient(b, grad, rhs, rhs, out, [](Acc g, const Acc&, const Acc& r) { return g / r; });
      return combine_gradient(b, grad, lhs, rhs, out,
                              [](Acc g, const Acc& l, const Acc& r) { return -g * (l / r) / r; });
    case Op::kReluAdd:
      return combine_gradient(b, grad, lhs, rhs, out,
                              [](Acc g, const Acc& l, const Acc& r) { return l + r <= 0 ? Acc(0) : g; });
    case Op::kSub:
      if (!lhs_side)
        return combine_gradient(b, grad, grad, grad, out, [](Acc g, const Acc&, const Acc&) { return -g; });
      [[fallthrough]];
    default: return combine_gradient(b, grad, grad, grad, out, [](Acc g, const Acc&, const Acc&) { return g; });
  }
}

// Adds a message-shaped gradient into an operand-shaped one.
template <class Acc>
inline void add_gradient(const Broadcast& b, Side side, const Acc* message, Acc* total) {
  const int64_t* offset = side == Side::kLhs ? b.lhs_offset : b.rhs_offset;
  const int step = side == Side::kLhs ? b.lhs_step : b.rhs_step;
  for (int64_t o = 0; o < b.outer; ++o) {
    const Acc* m = message + o * b.inner;
    Acc* t = total + offset[o];
    if (step) {
      for (int64_t i = 0; i < b.inner; ++i) t[i] += m[i];
    } else {
      Acc sum = 0;
      for (int64_t i = 0; i < b.inner; ++i) sum += m[i];
      t[0] += sum;
    }
  }
}

// Whether an operand has the elements of the message, in its order.
inline bool is_whole(const Broadcast& b, Side side) {
  const int64_t* offset = side == Side::kLhs ? b.lhs_offset : b.rhs_offset;
  bool whole = (side == Side::kLhs ? b.lhs_step : b.rhs_step) != 0;
  for (int64_t o = 0; whole && o < b.outer; ++o) whole = offset[o] == o * b.inner;
  return whole;
}

// The gradient of one side, if it is wanted: summed over a row's edges, or over the broadcast of a single edge.
template <class Acc>
class GradientSink {
 public:
  GradientSink(const GradientOut& out, int64_t len, const Broadcast& b, Side side)
      : out_(out), len_(len), side_(side), stores_(out.by_edge && is_whole(b, side)), sums_(out.data ? len : 0) {
    total_ = sums_.start();
  }
  explicit operator bool() const { return out_.data != nullptr; }
  Side side() const { return side_; }
  // Adds the gradient of an edge, of the shape of the message.
  void add(const Broadcast& b, const Acc* message, int64_t edge) {
    if (stores_) return encode(message, len_, out_.type, out_.data, edge);
    add_gradient<Acc>(b, side_, message, total_);
    if (out_.by_edge) return flush(edge);
    sums_.added(1);
  }
  void end_row(int64_t row) {
    if (out_.data && !out_.by_edge) flush(row);
  }

 private:
  void flush(int64_t index) {
    encode(sums_.finish(), len_, out_.type, out_.data, index);
    total_ = sums_.start();
  }
  GradientOut out_;
  int64_t len_;
  const Side side_;
  const bool stores_;  // of each edge, without a sum
  RunningSum<Acc> sums_;
  Acc* total_;
};

// out = those of n values whose winner, arg[first] and on, is this edge, and 0 for the others.
template <class Acc>
HALFGNN_NOINLINE void keep_winners(const Ids& arg, int64_t first, int64_t n, int64_t edge, const Acc* __restrict__ g,
                                   Acc* __restrict__ out) {
  arg.resolve([&](const auto* winner) {
    const auto id = static_cast<std::decay_t<decltype(*winner)>>(edge);
    for (int64_t i = 0; i < n; ++i) out[i] = winner[first + i] == id ? g[i] : Acc(0);
  });
}

template <class Acc>
void backward_rows(const BackwardArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency adj(args.topology);
  DecodedRow<Acc> grad_row(args.grad), lhs_row(args.lhs), rhs_row(args.rhs);
  const Broadcast& b = args.broadcast;
  GradientSink<Acc> lhs_sink(args.grad_lhs, args.lhs.len, b, Side::kLhs);
  GradientSink<Acc> rhs_sink(args.grad_rhs, args.rhs.len, b, Side::kRhs);
  Buffer<Acc> message(args.message_len), reaching(args.grad.len);
  const Ids arg(args.arg, args.topology.is_int64);
  const InverseDegrees<Acc> scale(args.mean_indptr, args.topology);
  const int64_t grad_len = args.grad.len;
  EdgeIds ids(adj);

  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t p = adj.indptr[row]; p < adj.indptr[row + 1]; ++p) {
      ids.hold(p);
      const int64_t edge = ids.edge_id(p), col = ids.column(p), ahead = p + kPrefetchEdges;
      if (ids.has_ahead(p)) {
        grad_row.prefetch(ids.column(ahead), ids.edge_id(ahead));
        lhs_row.prefetch(ids.column(ahead), ids.edge_id(ahead));
        rhs_row.prefetch(ids.column(ahead), ids.edge_id(ahead));
      }
      const Acc* g = grad_row.at(row, col, edge);
      const int64_t node = grad_row.locate(row, col, edge);
      if (scale) {
        const Acc factor = scale[node];
        for (int64_t i = 0; i < grad_len; ++i) reaching[i] = g[i] * factor;
        g = reaching;
      } else if (arg) {
        keep_winners(arg, node * grad_len, grad_len, edge, g, reaching.get());
        g = reaching;
      }
      const Acc* l = lhs_row.at(row, col, edge);
      const Acc* r = rhs_row.at(row, col, edge);
      const auto add_to = [&](GradientSink<Acc>& sink) {
        if (!sink) return;
        if (is_copy(args.op)) return sink.add(b, g, edge);
        form_gradient<Acc>(args.op, sink.side(), b, g, l, r, message.get());
        sink.add(b, message.get(), edge);
      };
      add_to(lhs_sink);
      add_to(rhs_sink);
    }
    lhs_sink.end_row(row);
    rhs_sink.end_row(row);
  }
}

// ---- the kernels of the table

static void mul_backward(const MulBackwardArgs& args, int64_t begin, int64_t end) {
  with_vector_type(args.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    with_same_or_float<T>(args.grad_type, [&](auto g) {
      using G = TypeOf<decltype(g)>;
      with_block<G, kNarrowLanes<G>>(args.dim, [&](auto b) {
        with_partner_type<T>(args.weight_type,
                             [&](auto w) { mul_backward_rows<decltype(b), T, TypeOf<decltype(w)>>(args, begin, end); });
      });
    });
  });
}
static void backward(const BackwardArgs& args, int64_t begin, int64_t end) {
  with_accumulator(args.grad.type, [&](auto a) { backward_rows<TypeOf<decltype(a)>>(args, begin, end); });
}

extern const BackwardKernels kBackward;
const BackwardKernels kBackward = {mul_backward, backward};

}  // namespace halfgnn::HALFGNN_ISA
