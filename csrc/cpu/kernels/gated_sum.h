// The gated sum (core/gated_sum.h) and its gradients, for all types and widths. Rows are cut into tiles of two blocks,
// which have two sums each in registers for a run of edges (see row_tiles.h).
#pragma once

#include "blocks.h"
#include "buffer.h"
#include "edge_window.h"
#include "exp.h"
#include "kernels.h"
#include "row_tiles.h"
#include "running_sum.h"
#include "stream.h"

namespace halfgnn::HALFGNN_ISA {

constexpr int kGateBlocks = 2;

// sigmoid(z), and its derivative. Neither cancels: both are made of exp(-|z|).
template <class V>
struct Gate {
  V value, slope;
};
template <int N, int L>
HALFGNN_INLINE Gate<Lanes<N, L>> gate_of(Lanes<N, L> z) {
  Gate<Lanes<N, L>> gate;
  for (int i = 0; i < N; ++i) {
    const FloatsOf<L> x = z.v[i], t = exp_nonpositive(x > splat<L>(0.f) ? -x : x),
                      r = splat<L>(1.f) / (splat<L>(1.f) + t);
    gate.value.v[i] = x > splat<L>(0.f) ? r : t * r;
    gate.slope.v[i] = t * r * r;
  }
  return gate;
}
template <class A>
HALFGNN_INLINE Gate<Single<A>> gate_of(Single<A> z) {
  const A t = static_cast<A>(exp(z.v > 0 ? -z.v : z.v)), r = 1 / (1 + t);
  return {{z.v > 0 ? r : t * r}, {t * r * r}};
}

// Types of a gated sum: blocks are cut for elements of T, and sums are of Acc.
template <class F>
HALFGNN_INLINE void with_gate_block(DType type, int64_t dim, F f) {
  if (type == DType::kDouble) return f(SingleBlock<double, double>{});
  with_vector_type(type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    if (dim < 8) return f(SingleBlock<T, float>{});
    with_block<T>(dim, f);
  });
}

// The node of a row: its blocks as Acc in lane order.
template <class B>
class OwnRow {
 public:
  explicit OwnRow(const Blocks<B>& blocks) : blocks_(blocks), lanes_(blocks.workspace()) {}
  template <class E>
  void set(const E* row) {
    blocks_.each([&](int64_t, int64_t slot, int64_t offset) { B::store_acc(load_as<B>(row + offset), lanes_ + slot); });
  }
  const typename B::Acc* at(int64_t slot) const { return lanes_ + slot; }

 private:
  Blocks<B> blocks_;
  Buffer<typename B::Acc> lanes_;
};

// Where the rows of consecutive edges begin, or null. See RowWindow.
template <class E>
class Rows {
 public:
  Rows(const Adjacency& adj, const void* data, int64_t dim, bool by_edge)
      : window_(adj, static_cast<const E*>(data), dim, by_edge), exists_(data != nullptr) {}
  const E* const* hold(int64_t begin, int64_t count) {
    if (!exists_) return nullptr;
    window_.hold(begin, count);
    return window_.rows(begin);
  }
  E* const* hold_for_write(int64_t begin, int64_t count) { return const_cast<E* const*>(hold(begin, count)); }

 private:
  RowWindow<E> window_;
  bool exists_;
};

// z of a block of an edge.
template <class B>
HALFGNN_INLINE typename B::V gate_input(const typename B::Acc* own, const typename B::Element* far,
                                        const typename B::Element* edge) {
  const typename B::V z = add(B::load_acc(own), B::load(far));
  return edge ? add(z, B::load(edge)) : z;
}

// f(whether edges have values, as a constant)
template <class F>
HALFGNN_INLINE void with_edge_values(const void* edge_values, F f) {
  if (edge_values) return f(std::true_type{});
  f(std::false_type{});
}

// ---- forward

template <class T>
struct GatedRun {
  int64_t count;
  const T* const* values;
  const T* const* gates;
  const T* const* gate_edges;   // or null
  const T* const* edge_values;  // or null
  T* const* edges;              // or null
  bool streams;                 // edges
};

// sum, gates = the sums over a run of edges of the first N blocks of `tile`.
template <class B, bool kEdgeValues, int N>
HALFGNN_NOINLINE void sum_gated(const RowTile& tile, const typename B::Acc* own,
                                const GatedRun<typename B::Element>& shape, typename B::Acc* sum,
                                typename B::Acc* gates) {
  using V = typename B::V;
  const GatedRun<typename B::Element> run = shape;  // which no store can change
  V total[N], weight[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) total[b] = weight[b] = V{};
  for (int64_t k = 0; k < run.count; ++k) {
    prefetch_tile<B, N>(tile, run.values[k + kRowsAhead]);
    prefetch_tile<B, N>(tile, run.gates[k + kRowsAhead]);
    if (run.gate_edges) prefetch_tile<B, N>(tile, run.gate_edges[k + kRowsAhead]);
    if constexpr (kEdgeValues) prefetch_tile<B, N>(tile, run.edge_values[k + kRowsAhead]);
    if (run.edges && !run.streams) prefetch_tile<B, N, 1>(tile, run.edges[k + kRowsAhead]);
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      const int64_t at = tile.offset[b];
      const V z =
          gate_input<B>(own + b * B::kWidth, run.gates[k] + at, run.gate_edges ? run.gate_edges[k] + at : nullptr);
      if (run.edges) store_block<B>(z, run.edges[k] + at, run.streams);
      const V gate = gate_of(z).value;
      V value = B::load(run.values[k] + at);
      if constexpr (kEdgeValues) value = add(value, B::load(run.edge_values[k] + at));
      total[b] = multiply_add(gate, value, total[b]);
      weight[b] = add(weight[b], gate);
    }
  }
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    B::store_acc(total[b], sum + b * B::kWidth);
    B::store_acc(weight[b], gates + b * B::kWidth);
  }
}

// The results of a row, from its sums.
template <class B>
HALFGNN_NOINLINE void store_gated(const GatedSumArgs& args, const Blocks<B>& blocks, int64_t row, bool is_empty,
                                  const typename B::Acc* sum, const typename B::Acc* gates) {
  using T = typename B::Element;
  using Acc = typename B::Acc;
  using V = typename B::V;
  Acc scale[B::kWidth];
  blocks.each([&](int64_t, int64_t slot, int64_t offset) {
    V total = B::load_acc(sum + slot);
    const int64_t first = row * args.dim + offset;
    if (args.normalize) {
      B::store_acc(B::load_acc(gates + slot), scale);
      for (int i = 0; i < B::kWidth; ++i) scale[i] = is_empty ? Acc(0) : 1 / (scale[i] + static_cast<Acc>(args.eps));
      const V factor = B::load_acc(scale);
      total = multiply(factor, total);
      if (args.scale) B::store(factor, static_cast<Acc*>(args.scale) + first);
      if (args.quotient) B::store(total, static_cast<Acc*>(args.quotient) + first);
    }
    B::store(total, static_cast<T*>(args.out) + first);
  });
}

template <class B>
void gated_sum_rows(const GatedSumArgs& args, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  using Acc = typename B::Acc;
  const Adjacency adj(args.topology);
  const Blocks<B> blocks(1, args.dim);
  Rows<T> values(adj, args.value, args.dim, false), gates(adj, args.gate_src, args.dim, false);
  Rows<T> gate_edges(adj, args.gate_edge, args.dim, true), edge_values(adj, args.edge_value, args.dim, true);
  Rows<T> edges(adj, args.edges, args.dim, true);
  const RowStream stream(args.edges, adj.num_edges, args.dim * static_cast<int64_t>(sizeof(T)));
  OwnRow<B> own(blocks);
  RunningSum<Acc> sums(blocks.workspace()), weights(blocks.workspace());

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    const bool is_empty = begin == end;
    Acc* sum = is_empty ? sums.start() : sums.start_runs();
    Acc* weight = is_empty ? weights.start() : weights.start_runs();
    if (!is_empty) own.set(static_cast<const T*>(args.gate_dst) + row * args.dim);
    for (int64_t p = begin; p < end; p += kRun) {
      if (p > begin) {
        sums.next_run();
        weights.next_run();
      }
      const int64_t n = end - p < kRun ? end - p : kRun;
      const GatedRun<T> run{n,
                            values.hold(p, n),
                            gates.hold(p, n),
                            gate_edges.hold(p, n),
                            edge_values.hold(p, n),
                            edges.hold_for_write(p, n),
                            static_cast<bool>(stream)};
      each_tile<kGateBlocks>(blocks, [&](auto blocks_of, const RowTile& tile, int64_t slot) {
        with_edge_values(run.edge_values, [&](auto has_values) {
          sum_gated<B, has_values, decltype(blocks_of)::kBlocks>(tile, own.at(slot), run, sum + slot, weight + slot);
        });
      });
    }
    store_gated(args, blocks, row, is_empty, sums.finish(), weights.finish());
  }
}

// ---- backward

// What a run of edges reads and writes. G is the type of grad.
template <class B, class G>
struct GateGradientRun {
  using T = typename B::Element;
  using Acc = typename B::Acc;
  int64_t count;
  const T* const* gates;        // of the columns
  const T* const* gate_edges;   // or null
  const T* const* edge_values;  // or null
  const T* const* grad_edges;   // or null
  T* const* grad_gate_edges;    // or null
  T* const* grad_edge_values;   // or null
  const T* const* values;       // of the columns; null: of the row
  const G* const* grads;        // of the columns; null: of the row
  const Acc* const* shifts;     // of the columns; null: of the row, or 0
  bool streams;                 // grad_gate_edges
  bool streams_values;          // grad_edge_values
};
// The row's own blocks, by slot. Null if they are the columns', or are 0.
template <class Acc>
struct OwnBlocks {
  const Acc *gate, *value, *grad, *shift;
};

// grad_gate = the sum over a run of edges of dz ; grad_value = that of gate grad. By source: of the two passes the one
// whose rows are sources. The other writes gate grad of each edge, if edges have values.
template <class B, class G, bool kBySrc, bool kEdgeValues, int N>
HALFGNN_NOINLINE void sum_gate_gradients(const RowTile& tile, const OwnBlocks<typename B::Acc>& own,
                                         const GateGradientRun<B, G>& shape, typename B::Acc* grad_gate,
                                         typename B::Acc* grad_value) {
  using V = typename B::V;
  const GateGradientRun<B, G> run = shape;  // which no store can change
  V total[N], value_total[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) total[b] = value_total[b] = V{};
  for (int64_t k = 0; k < run.count; ++k) {
    const int64_t ahead = k + kRowsAhead;
    prefetch_tile<B, N>(tile, run.gates[ahead]);
    if (run.gate_edges) prefetch_tile<B, N>(tile, run.gate_edges[ahead]);
    if (run.grad_edges) prefetch_tile<B, N>(tile, run.grad_edges[ahead]);
    if (run.grad_gate_edges && !run.streams) prefetch_tile<B, N, 1>(tile, run.grad_gate_edges[ahead]);
    if constexpr (kEdgeValues) {
      prefetch_tile<B, N>(tile, run.edge_values[ahead]);
      if (!kBySrc && run.grad_edge_values && !run.streams_values)
        prefetch_tile<B, N, 1>(tile, run.grad_edge_values[ahead]);
    }
    if constexpr (kBySrc) {
      prefetch_tile<B, N>(tile, run.grads[ahead]);
      if (run.shifts) prefetch_tile<B, N>(tile, run.shifts[ahead]);
    } else {
      prefetch_tile<B, N>(tile, run.values[ahead]);
    }
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      const int64_t at = tile.offset[b], slot = b * B::kWidth;
      const Gate<V> gate =
          gate_of(gate_input<B>(own.gate + slot, run.gates[k] + at, run.gate_edges ? run.gate_edges[k] + at : nullptr));
      V value = kBySrc ? B::load_acc(own.value + slot) : B::load(run.values[k] + at), grad, shift{};
      if constexpr (kEdgeValues) value = add(value, B::load(run.edge_values[k] + at));
      if constexpr (kBySrc) {
        grad = load_as<B>(run.grads[k] + at);
        if (run.shifts) shift = load_as<B>(run.shifts[k] + at);
        value_total[b] = multiply_add(gate.value, grad, value_total[b]);
      } else {
        grad = B::load_acc(own.grad + slot);
        if (own.shift) shift = B::load_acc(own.shift + slot);
        if (kEdgeValues && run.grad_edge_values)
          store_block<B>(multiply(gate.value, grad), run.grad_edge_values[k] + at, run.streams_values);
      }
      V dz = multiply(gate.slope, subtract(multiply(grad, value), shift));
      if (run.grad_edges) dz = add(dz, B::load(run.grad_edges[k] + at));
      total[b] = add(total[b], dz);
      if (run.grad_gate_edges) store_block<B>(dz, run.grad_gate_edges[k] + at, run.streams);
    }
  }
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    B::store_acc(total[b], grad_gate + b * B::kWidth);
    if (kBySrc) B::store_acc(value_total[b], grad_value + b * B::kWidth);
  }
}

template <class B, class Acc>
HALFGNN_INLINE void store_sums(const Blocks<B>& blocks, const Acc* sum, void* out, int64_t row) {
  if (!out) return;
  auto* first = static_cast<typename B::Element*>(out) + row * blocks.len();
  blocks.each([&](int64_t, int64_t slot, int64_t offset) { B::store(B::load_acc(sum + slot), first + offset); });
}

template <class B, class G, bool kBySrc>
void gated_sum_backward_rows(const GatedSumBackwardArgs& args, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  using Acc = typename B::Acc;
  const Adjacency adj(args.topology);
  const Blocks<B> blocks(1, args.dim);
  const int64_t dim = args.dim;
  const void *own_gates = kBySrc ? args.gate_src : args.gate_dst, *far_gates = kBySrc ? args.gate_dst : args.gate_src;
  Rows<T> gates(adj, far_gates, dim, false), gate_edges(adj, args.gate_edge, dim, true);
  Rows<T> grad_edges(adj, args.grad_edges, dim, true), grad_gate_edges(adj, args.grad_gate_edge, dim, true);
  Rows<T> edge_values(adj, args.edge_value, dim, true);
  Rows<T> grad_edge_values(adj, kBySrc ? nullptr : args.grad_edge_value, dim, true);
  Rows<T> values(adj, kBySrc ? nullptr : args.value, dim, false);
  Rows<G> grads(adj, kBySrc ? args.grad : nullptr, dim, false);
  Rows<Acc> shifts(adj, kBySrc ? args.shift : nullptr, dim, false);
  const int64_t row_bytes = dim * static_cast<int64_t>(sizeof(T));
  const RowStream stream(args.grad_gate_edge, adj.num_edges, row_bytes);
  const RowStream value_stream(args.grad_edge_value, adj.num_edges, row_bytes);
  OwnRow<B> gate(blocks), value(blocks), grad(blocks), shift(blocks);
  RunningSum<Acc> sums(blocks.workspace()), value_sums(blocks.workspace());

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1], first = row * dim;
    Acc* sum = begin < end ? sums.start_runs() : sums.start();
    Acc* value_sum = begin < end ? value_sums.start_runs() : value_sums.start();
    if (begin < end) {
      gate.set(static_cast<const T*>(own_gates) + first);
      if (kBySrc) {
        value.set(static_cast<const T*>(args.value) + first);
      } else {
        grad.set(static_cast<const G*>(args.grad) + first);
        if (args.shift) shift.set(static_cast<const Acc*>(args.shift) + first);
      }
    }
    for (int64_t p = begin; p < end; p += kRun) {
      if (p > begin) {
        sums.next_run();
        value_sums.next_run();
      }
      const int64_t n = end - p < kRun ? end - p : kRun;
      const GateGradientRun<B, G> run{n,
                                      gates.hold(p, n),
                                      gate_edges.hold(p, n),
                                      edge_values.hold(p, n),
                                      grad_edges.hold(p, n),
                                      grad_gate_edges.hold_for_write(p, n),
                                      grad_edge_values.hold_for_write(p, n),
                                      values.hold(p, n),
                                      grads.hold(p, n),
                                      shifts.hold(p, n),
                                      static_cast<bool>(stream),
                                      static_cast<bool>(value_stream)};
      each_tile<kGateBlocks>(blocks, [&](auto blocks_of, const RowTile& tile, int64_t slot) {
        const OwnBlocks<Acc> own{gate.at(slot), value.at(slot), grad.at(slot), args.shift ? shift.at(slot) : nullptr};
        with_edge_values(run.edge_values, [&](auto has_values) {
          sum_gate_gradients<B, G, kBySrc, has_values, decltype(blocks_of)::kBlocks>(tile, own, run, sum + slot,
                                                                                     value_sum + slot);
        });
      });
    }
    store_sums(blocks, sums.finish(), args.grad_gate, row);
    if (kBySrc) store_sums(blocks, value_sums.finish(), args.grad_value, row);
  }
}

// ---- the kernels of the table

static void gated_sum(const GatedSumArgs& args, int64_t begin, int64_t end) {
  with_gate_block(args.type, args.dim, [&](auto b) { gated_sum_rows<decltype(b)>(args, begin, end); });
}
static void gated_sum_backward(const GatedSumBackwardArgs& args, int64_t begin, int64_t end) {
  with_gate_block(args.type, args.dim, [&](auto b) {
    using B = decltype(b);
    using T = typename B::Element;
    const auto run = [&](auto g) {
      using G = TypeOf<decltype(g)>;
      if (args.by_src) return gated_sum_backward_rows<B, G, true>(args, begin, end);
      gated_sum_backward_rows<B, G, false>(args, begin, end);
    };
    if constexpr (sizeof(T) == 8) {
      run(Type<double>{});
    } else {
      with_same_or_float<T>(args.grad_type, run);
    }
  });
}

extern const GatedSumKernels kGatedSum;
const GatedSumKernels kGatedSum = {gated_sum, gated_sum_backward};

}  // namespace halfgnn::HALFGNN_ISA
