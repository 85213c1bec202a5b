// Sums of messages that are made of a node's row and an edge's row of the same width (vector kernels), and the
// gradients of both in one pass over out-edges. A row is cut into tiles, whose sums stay in registers for a run of
// edges (see row_tiles.h).
#pragma once

#include "blocks.h"
#include "buffer.h"
#include "edge_window.h"
#include "kernels.h"
#include "row_tiles.h"
#include "running_sum.h"
#include "stream.h"

namespace halfgnn::HALFGNN_ISA {

// x e ; x + sign e ; relu(x + e)
enum class Message { kMul, kAdd, kReluAdd };

template <Message kMessage>
struct MessageOf {
  static constexpr Message kValue = kMessage;
};
template <class F>
HALFGNN_INLINE void with_message(Op op, F f) {
  if (op == Op::kMul) return f(MessageOf<Message::kMul>{});
  if (op == Op::kReluAdd) return f(MessageOf<Message::kReluAdd>{});
  return f(MessageOf<Message::kAdd>{});
}
inline float sign_of(Op op) { return op == Op::kSub ? -1.f : 1.f; }

// ---- the sum

// sum = the sum over `count` edges of the messages' first N blocks of `tile`.
template <class B, Message kMessage, int N, class E>
HALFGNN_NOINLINE void sum_messages(const RowTile& tile, const typename B::Element* const* rows, const E* const* edges,
                                   int64_t count, float sign, float* sum) {
  using V = typename B::V;
  const typename B::Weight factor = B::weight(sign);
  V total[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) total[b] = V{};
  for (int64_t k = 0; k < count; ++k) {
    prefetch_tile<B, N>(tile, rows[k + kRowsAhead]);
    prefetch_tile<B, N>(tile, edges[k + kRowsAhead]);
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      const V x = B::load(rows[k] + tile.offset[b]), e = load_as<B>(edges[k] + tile.offset[b]);
      if constexpr (kMessage == Message::kMul) {
        total[b] = multiply_add(x, e, total[b]);
      } else if constexpr (kMessage == Message::kAdd) {
        total[b] = add(total[b], multiply_add(factor, e, x));
      } else {
        const V z = add(x, e);
        total[b] = add(total[b], where_positive(z, z));
      }
    }
  }
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) B::store_acc(total[b], sum + b * B::kWidth);
}

// The same for whole rows.
template <class B, class E>
HALFGNN_NOINLINE void sum_messages(const Blocks<B>& blocks, Op op, const typename B::Element* const* rows,
                                   const E* const* edges, int64_t count, float* sum) {
  with_message(op, [&](auto message) {
    constexpr Message kMessage = decltype(message)::kValue;
    each_tile<kTileBlocks>(blocks, [&](auto n, const RowTile& tile, int64_t slot) {
      sum_messages<B, kMessage, decltype(n)::kBlocks>(tile, rows, edges, count, sign_of(op), sum + slot);
    });
  });
}

template <class B, class E>
void edge_sum_rows(const EdgeSumArgs& args, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  const Adjacency adj(args.topology);
  const Blocks<B> blocks(1, args.dim);
  RowWindow<T> nodes(adj, static_cast<const T*>(args.feat), args.dim, false);
  RowWindow<E> edges(adj, static_cast<const E*>(args.edge), args.dim, true);
  RunningSum<float> sums(blocks.workspace());

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    float* run = begin < end ? sums.start_runs() : sums.start();
    for (int64_t p = begin; p < end; p += kRun) {
      if (p > begin) sums.next_run();
      const int64_t count = end - p < kRun ? end - p : kRun;
      nodes.hold(p, count);
      edges.hold(p, count);
      sum_messages(blocks, args.op, nodes.rows(p), edges.rows(p), count, run);
    }
    const float factor = args.divide_by_degree && end > begin ? 1.f / static_cast<float>(end - begin) : 1.f;
    with_same_or_float<T>(args.out_type, [&](auto s) {
      store_scaled(blocks, sums.finish(), factor, static_cast<TypeOf<decltype(s)>*>(args.out) + row * args.dim);
    });
  }
}

// ---- its gradients

// What a run of edges reads and writes. Rows that are not wanted are null.
template <class G, class E>
struct GradientRun {
  int64_t count;
  const G* const* grads;
  const float* scale;  // one per edge, or null
  const E* const* edges;
  E* const* grad_edges;
  float sign;
  bool streams;  // grad_edges
};

// sum = the sum over a run of edges of the gradients of feat, for the first N blocks of `tile`. own: feat's blocks of
// the tile.
template <class B, Message kMessage, int N, class E>
HALFGNN_NOINLINE void sum_gradients(const RowTile& tile, const float* own,
                                    const GradientRun<typename B::Element, E>& shape, float* sum) {
  using V = typename B::V;
  const GradientRun<typename B::Element, E> run = shape;  // which no store can change
  const typename B::Weight factor = B::weight(run.sign);
  V total[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) total[b] = V{};
  for (int64_t k = 0; k < run.count; ++k) {
    prefetch_tile<B, N>(tile, run.grads[k + kRowsAhead]);
    if (run.edges) prefetch_tile<B, N>(tile, run.edges[k + kRowsAhead]);
    if (run.grad_edges && !run.streams) prefetch_tile<B, N, 1>(tile, run.grad_edges[k + kRowsAhead]);
    const typename B::Weight scaled = B::weight(run.scale ? run.scale[k] : 1.f);
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      V g = scale(scaled, B::load(run.grads[k] + tile.offset[b]));
      if constexpr (kMessage == Message::kMul) {
        if (run.edges) total[b] = multiply_add(g, load_as<B>(run.edges[k] + tile.offset[b]), total[b]);
        if (run.grad_edges) g = multiply(g, B::load_acc(own + b * B::kWidth));
      } else {
        if constexpr (kMessage == Message::kReluAdd) {
          const V x = B::load_acc(own + b * B::kWidth), e = load_as<B>(run.edges[k] + tile.offset[b]);
          g = where_positive(add(x, e), g);
        }
        total[b] = add(total[b], g);
        if constexpr (kMessage == Message::kAdd) g = scale(factor, g);
      }
      if (run.grad_edges) store_block<B>(g, run.grad_edges[k] + tile.offset[b], run.streams);
    }
  }
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) B::store_acc(total[b], sum + b * B::kWidth);
}

template <class B, class E>
HALFGNN_NOINLINE void sum_gradients(const Blocks<B>& blocks, Op op, const float* own,
                                    const GradientRun<typename B::Element, E>& run, float* sum) {
  with_message(op, [&](auto message) {
    constexpr Message kMessage = decltype(message)::kValue;
    each_tile<kTileBlocks>(blocks, [&](auto n, const RowTile& tile, int64_t slot) {
      sum_gradients<B, kMessage, decltype(n)::kBlocks>(tile, own + slot, run, sum + slot);
    });
  });
}

// Blocks are cut for the type of grad. T is the type of feat and of its gradient, E that of edge data.
template <class B, class T, class E>
void edge_sum_backward_rows(const EdgeSumBackwardArgs& args, int64_t row_begin, int64_t row_end) {
  using G = typename B::Element;
  const Adjacency adj(args.topology);
  const Blocks<B> blocks(1, args.dim);
  const T* feat = static_cast<const T*>(args.feat);
  EdgeWindow<G, float> grads(adj, static_cast<const G*>(args.grad), args.dim, false, nullptr,
                             {args.mean_indptr, args.topology}, 1);
  RowWindow<E> edges(adj, static_cast<const E*>(args.edge), args.dim, true);
  RowWindow<E> grad_edges(adj, static_cast<const E*>(args.grad_edge), args.dim, true);
  const RowStream stream(args.grad_edge, adj.num_edges, args.dim * static_cast<int64_t>(sizeof(E)));
  RunningSum<float> sums(blocks.workspace());
  Buffer<float> own(blocks.workspace());

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    float* sum = begin < end ? sums.start_runs() : sums.start();
    if (feat && begin < end)
      blocks.each([&](int64_t, int64_t slot, int64_t offset) {
        B::store_acc(load_as<B>(feat + row * args.dim + offset), own + slot);
      });
    for (int64_t p = begin; p < end; p += kRun) {
      if (p > begin) sums.next_run();
      GradientRun<G, E> run{};
      run.count = end - p < kRun ? end - p : kRun;
      run.sign = sign_of(args.op);
      run.streams = static_cast<bool>(stream);
      grads.hold(p, run.count);
      run.grads = grads.rows(p);
      run.scale = grads.weights(p);
      if (args.edge) {
        edges.hold(p, run.count);
        run.edges = edges.rows(p);
      }
      if (args.grad_edge) {
        grad_edges.hold(p, run.count);
        run.grad_edges = const_cast<E* const*>(grad_edges.rows(p));
      }
      sum_gradients(blocks, args.op, own.get(), run, sum);
    }
    if (args.grad_feat) store_scaled(blocks, sums.finish(), 1.f, static_cast<T*>(args.grad_feat) + row * args.dim);
  }
}

// ---- the kernels of the table

static void edge_sum(const EdgeSumArgs& args, int64_t begin, int64_t end) {
  with_vector_type(args.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    with_partner_type<T>(args.edge_type, [&](auto e) {
      with_block<T>(args.dim, [&](auto b) { edge_sum_rows<decltype(b), TypeOf<decltype(e)>>(args, begin, end); });
    });
  });
}
static void edge_sum_backward(const EdgeSumBackwardArgs& args, int64_t begin, int64_t end) {
  with_vector_type(args.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    with_same_or_float<T>(args.grad_type, [&](auto g) {
      with_block<TypeOf<decltype(g)>>(args.dim, [&](auto b) {
        with_partner_type<T>(args.edge_type, [&](auto e) {
          edge_sum_backward_rows<decltype(b), T, TypeOf<decltype(e)>>(args, begin, end);
        });
      });
    });
  });
}

extern const EdgeSumKernels kEdgeSum;
const EdgeSumKernels kEdgeSum = {edge_sum, edge_sum_backward};

}  // namespace halfgnn::HALFGNN_ISA
