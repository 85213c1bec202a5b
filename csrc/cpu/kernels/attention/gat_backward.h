// GAT's backward over sources (docs/attention.md), and the records of the destinations that it gathers.
#pragma once

#include "dropout.h"
#include "features.h"
#include "gat_scores.h"

namespace halfgnn::HALFGNN_ISA {

// For destinations: delta = <g, out>, grad_attn_dst = (1 - slope) <g, positive>, and the records.
template <class B>
void gat_node_rows(const GatPass& pass, int64_t node_begin, int64_t node_end) {
  using T = typename B::Element;
  using Acc = typename B::Acc;
  const GatArgs& args = pass.args;
  const int64_t heads = args.heads;
  const HeadBlocks<B> blocks(heads, args.dim);
  const Operand attn_dst{args.attn_dst, args.logit_type, heads, 0, Target::kRow};
  const Acc below = 1 - static_cast<Acc>(args.negative_slope);
  Buffer<Acc> grad_attn(heads);
  for (int64_t node = node_begin; node < node_end; ++node) {
    const T* grad = static_cast<const T*>(args.grad) + node * blocks.len();
    Acc* record = static_cast<Acc*>(pass.records) + node * kGatRecord * heads;
    Acc* delta = record + 2 * heads;
    decode_heads(attn_dst, node, record);
    memcpy(record + heads, static_cast<const Acc*>(args.lse) + node * heads, static_cast<size_t>(heads) * sizeof(Acc));
    dot_precise(blocks, grad, args.out, node, delta);
    dot_precise(blocks, grad, {args.positive, nullptr}, node, grad_attn.get());
    for (int64_t h = 0; h < heads; ++h) grad_attn[h] *= below;
    encode_heads(grad_attn.get(), heads, args.logit_type, args.grad_attn_dst, node);
  }
}

// For K gradients: sum += weight_k grad_k and dots_k = <own, grad_k>, reading each once.
template <class B, int K>
HALFGNN_INLINE void add_and_dot(const HeadBlocks<B>& blocks, const typename B::Element* const* grads,
                                const typename B::Acc* own, const typename B::Acc* weight, typename B::Acc* sum,
                                typename B::Acc* dots) {
  using V = typename B::V;
  for (int64_t h = 0; h < blocks.heads; ++h) {
    typename B::Weight w[K];
    V dot[K] = {};
    for (int k = 0; k < K; ++k) w[k] = B::weight(weight[k * blocks.heads + h]);
    for (int64_t b = 0; b < blocks.per_head; ++b) {
      const int64_t slot = blocks.slot(h, b), offset = blocks.offset(h, b);
      const V x = B::load_acc(own + slot);
      V total = B::load_acc(sum + slot);
      for (int k = 0; k < K; ++k) {
        const V g = B::load(grads[k] + offset);
        total = multiply_add(w[k], g, total);
        dot[k] = blocks.dot(b, x, g, dot[k]);
      }
      B::store_acc(total, sum + slot);
    }
    store_lane_sums<B, K>(dot, dots + h, blocks.heads);
  }
}

// The same for the edges [first, last) of a tile.
template <class B>
HALFGNN_NOINLINE void add_and_dot_edges(const HeadBlocks<B>& blocks, const EdgeTile& tile,
                                        const typename B::Element* grad, int64_t first, int64_t last,
                                        const typename B::Acc* own, const typename B::Acc* weight,
                                        RunningSum<typename B::Acc>* sum, typename B::Acc* dots) {
  in_batches<B::kEdges>(first, last, [&](int64_t e, auto count) {
    constexpr int kCount = decltype(count)::value;
    const typename B::Element* rows[kCount];
    gather_rows<kCount>(tile, grad, blocks.len(), true, e, rows);
    add_and_dot<B, kCount>(blocks, rows, own, weight + e * blocks.heads, sum->sum(), dots + e * blocks.heads);
    sum->added(kCount);
  });
}

// a_e, delta and s_e of a tile's edges; own: workspace for a row's attn_src; lse: workspace
template <class Acc>
HALFGNN_NOINLINE void backward_weights(const GatArgs& args, const EdgeTile& tile, const Acc* records, Acc* own,
                                       Acc* __restrict lse, Acc* __restrict delta, Acc* __restrict scores,
                                       Acc* __restrict weights) {
  const Operand attn_src{args.attn_src, args.logit_type, args.heads, 0, Target::kRow};
  with_columns(args.heads, [&](auto columns) {
    const int64_t heads = columns.count();
    tile.each_row([&](int64_t row, int64_t first, int64_t last) {
      if (first == last) return;
      decode_heads(attn_src, row, own);
      for (int64_t e = first; e < last; ++e) {
        if (tile.has(e + kPrefetchEdges))
          prefetch_row(records + tile.column(e + kPrefetchEdges) * kGatRecord * heads, 3 * heads);
        const Acc* record = records + tile.column(e) * kGatRecord * heads;
        for (int64_t h = 0; h < heads; ++h) {
          scores[e * heads + h] = own[h] + record[h];
          lse[e * heads + h] = record[heads + h];
          delta[e * heads + h] = record[2 * heads + h];
        }
      }
    });
  });
  clear_padding(tile, scores);
  clear_padding(tile, lse);
  clear_padding(tile, delta);
  if (args.edge_logits) add_edge_values(args.edge_logits, args.logit_type, tile, scores);
  const int64_t n = tile.padded();
  leaky_entries(n, static_cast<Acc>(args.negative_slope), scores, weights);
  for (int64_t i = 0; i < n; ++i) weights[i] -= lse[i];
  exp_entries(weights, n);
}

// delta = a_e delta. positive = used and scores = a_e delta where s_e > 0, else 0.
template <class Acc>
HALFGNN_NOINLINE void positive_terms(int64_t n, const Acc* __restrict used, const Acc* __restrict weights,
                                     Acc* __restrict delta, Acc* __restrict scores, Acc* __restrict positive) {
  for (int64_t i = 0; i < n; ++i) {
    const Acc term = weights[i] * delta[i];
    delta[i] = term;
    positive[i] = scores[i] > 0 ? used[i] : Acc(0);
    scores[i] = scores[i] > 0 ? term : Acc(0);
  }
}

// scores = dl_e = a_e (m_e <g, h> - delta) LeakyReLU'(s_e), stored as the gradient of edge_logits. factors: m_e, or
// null
template <class Acc>
HALFGNN_NOINLINE void store_edge_gradients(const GatArgs& args, const EdgeTile& tile, const Acc* __restrict factors,
                                           const Acc* __restrict weights, const Acc* __restrict dots,
                                           const Acc* __restrict delta, Acc* __restrict scores) {
  const Acc slope = static_cast<Acc>(args.negative_slope);
  const int64_t n = tile.entries();
  for (int64_t i = 0; i < n; ++i) {
    const Acc dot = factors ? factors[i] * dots[i] : dots[i];
    const Acc term = weights[i] * (dot - delta[i]);
    scores[i] = scores[i] > 0 ? term : slope * term;
  }
  store_edge_values(tile, scores, args.logit_type, args.grad_edge_logits);
}

// kEdges: also the gradient of edge_logits, for which every edge needs a dot product. Otherwise the gradient of
// attn_src comes from sums over the edges with s_e > 0.
template <class B, bool kEdges>
class GatBackward {
  using T = typename B::Element;
  using Acc = typename B::Acc;

 public:
  GatBackward(const GatPass& pass, int64_t row_begin, int64_t row_end)
      : args_(pass.args),
        records_(static_cast<const Acc*>(pass.records)),
        blocks_(args_.heads, args_.dim),
        tile_(args_.topology, args_.heads, tile_edges(args_.heads, 0), row_begin, row_end),
        scratch_(tile_, blocks_) {}

  void run() {
    Scratch& s = scratch_;
    while (tile_.next()) {
      backward_weights(args_, tile_, records_, s.own.get(), s.lse.get(), s.delta.get(), s.scores.get(),
                       s.weights.get());
      const Acc* used = drop();
      if constexpr (kEdges) {
        add_and_dot_tile(used);
        store_edge_gradients(args_, tile_, args_.dropout.seed ? s.factors.get() : nullptr, s.weights.get(),
                             s.dots_or_positive(), s.delta.get(), s.scores.get());
        add_edge_gradients();
      } else {
        positive_terms(tile_.padded(), used, s.weights.get(), s.delta.get(), s.scores.get(), s.dots_or_positive());
        add_positive_tile(used);
      }
    }
  }

 private:
  struct Scratch {
    // How many values there are of a tile's entries, of heads, and of a row of sums.
    int64_t entries, heads, row;
    Scratch(const EdgeTile& tile, const Blocks<B>& blocks)
        : entries(tile.capacity()), heads(tile.heads), row(blocks.workspace()) {}

    Buffer<Acc> scores{entries};                  // s_e; then dl_e, or a_e delta where s_e > 0
    Buffer<Acc> weights{entries};                 // a_e
    Buffer<Acc> lse{entries};                     // of each edge's destination; then dots_or_positive()
    Buffer<Acc> delta{entries};                   // then a_e delta, unless kEdges
    Buffer<Acc> factors{entries}, kept{entries};  // m_e and a_e m_e, with dropout only
    Buffer<Acc> own{heads}, grad_attn{heads};     // of one row, one per head
    Buffer<Acc> own_feat{row}, all_dots{heads}, positive_dots{heads};
    Buffer<double> all_deltas{heads}, positive_deltas{heads};  // sums over a row, of dl_e or of a_e delta
    RunningSum<Acc> sum{row}, positive_sum{kEdges ? 0 : row};
    // <g, h> if kEdges, else a_e m_e where s_e > 0
    Acc* dots_or_positive() { return lse; }
  };

  // a_e m_e
  HALFGNN_INLINE const Acc* drop() {
    if (!args_.dropout.seed) return scratch_.weights;
    dropout_factors(args_.dropout, tile_, scratch_.factors.get());
    memcpy(scratch_.kept, scratch_.weights, static_cast<size_t>(tile_.padded()) * sizeof(Acc));
    multiply_entries(tile_.padded(), scratch_.factors.get(), scratch_.kept.get());
    return scratch_.kept;
  }

  // grad_feat, and <g, h> of every edge.
  HALFGNN_INLINE void add_and_dot_tile(const Acc* used) {
    Scratch& s = scratch_;
    tile_.each_row([&](int64_t row, int64_t first, int64_t last) {
      if (tile_.starts) s.sum.start();
      if (tile_.starts && first < last) load_own(blocks_, feat(row), s.own_feat.get());
      add_and_dot_edges(blocks_, tile_, static_cast<const T*>(args_.grad), first, last, s.own_feat.get(), used, &s.sum,
                        s.dots_or_positive());
      if (tile_.finishes) store_sums(blocks_, s.sum.finish(), grad_feat(row));
    });
  }
  HALFGNN_INLINE void add_edge_gradients() {
    Scratch& s = scratch_;
    tile_.each_row([&](int64_t row, int64_t first, int64_t last) {
      add_entries(tile_, first, last, s.scores.get(), s.all_deltas.get());
      if (!tile_.finishes) return;
      for (int64_t h = 0; h < args_.heads; ++h) s.grad_attn[h] = static_cast<Acc>(s.all_deltas[h]);
      encode_heads(s.grad_attn.get(), args_.heads, args_.logit_type, args_.grad_attn_src, row);
    });
  }

  HALFGNN_INLINE void add_positive_tile(const Acc* used) {
    Scratch& s = scratch_;
    tile_.each_row([&](int64_t row, int64_t first, int64_t last) {
      add_entries(tile_, first, last, s.delta.get(), s.all_deltas.get());
      add_entries(tile_, first, last, s.scores.get(), s.positive_deltas.get());
      if (tile_.starts) {
        s.sum.start();
        s.positive_sum.start();
      }
      add_edges<true, B, 2>(blocks_, tile_, static_cast<const T*>(args_.grad), first, last,
                            {used, s.dots_or_positive()}, {&s.sum, &s.positive_sum});
      if (tile_.finishes) store_from_positive(row);
    });
  }
  HALFGNN_INLINE void store_from_positive(int64_t row) {
    Scratch& s = scratch_;
    const Acc slope = static_cast<Acc>(args_.negative_slope);
    const Acc* total = s.sum.finish();
    store_sums(blocks_, total, grad_feat(row));
    dot_sums(blocks_, total, feat(row), s.all_dots.get());
    dot_sums(blocks_, s.positive_sum.finish(), feat(row), s.positive_dots.get());
    for (int64_t h = 0; h < args_.heads; ++h)
      s.grad_attn[h] = static_cast<Acc>(slope * (s.all_dots[h] - s.all_deltas[h]) +
                                        (1 - slope) * (s.positive_dots[h] - s.positive_deltas[h]));
    encode_heads(s.grad_attn.get(), args_.heads, args_.logit_type, args_.grad_attn_src, row);
  }

  HALFGNN_INLINE const T* feat(int64_t row) const { return static_cast<const T*>(args_.feat) + row * blocks_.len(); }
  HALFGNN_INLINE T* grad_feat(int64_t row) const { return static_cast<T*>(args_.grad_feat) + row * blocks_.len(); }

  const GatArgs& args_;
  const Acc* records_;
  const HeadBlocks<B> blocks_;
  EdgeTile tile_;
  Scratch scratch_;
};

}  // namespace halfgnn::HALFGNN_ISA
