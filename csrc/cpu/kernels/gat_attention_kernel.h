// GAT's attention on the CPU. Included once for each instruction set (see attention_*.cpp).
#pragma once

#include "attention_kernel.h"

namespace halfgnn {
namespace HALFGNN_ISA {

// scores += edge_logits of the tile's edges; row: scratch for one edge
template <class Acc>
HALFGNN_NOINLINE void add_edge_logits(const GatArgs& args, const EdgeTile& tile, Acc* row, Acc* scores) {
  const Operand logits{args.edge_logits, args.logit_type, args.heads, 0, Target::kEdge};
  const int64_t bytes = args.heads * size_of(args.logit_type);
  for (int64_t e = 0; e < tile.num_edges(); ++e) {
    if (tile.has(e + kPrefetchEdges)) prefetch_edge(args.edge_logits, tile.edge_id(e + kPrefetchEdges), bytes);
    decode(logits, tile.edge_id(e), row);
    for (int64_t h = 0; h < args.heads; ++h) scores[e * args.heads + h] += row[h];
  }
}

// s_e and l_e of a tile's edges; own: scratch for a row's logits
template <class Acc>
HALFGNN_NOINLINE void forward_scores(const GatArgs& args, const EdgeTile& tile, const Acc* attn_src, Acc* own,
                                     Acc* __restrict scores, Acc* __restrict logits) {
  const Operand attn_dst{args.attn_dst, args.logit_type, args.heads, 0, Target::kRow};
  with_columns(args.heads, [&](auto columns) {
    const int64_t heads = columns.count();
    each_row(tile, [&](int64_t row, int64_t first, int64_t last) {
      if (first == last) return;
      decode_pairs(attn_dst, row, own);
      for (int64_t e = first; e < last; ++e) {
        if (tile.has(e + kPrefetchEdges)) __builtin_prefetch(attn_src + tile.column(e + kPrefetchEdges) * heads);
        const Acc* other = attn_src + tile.column(e) * heads;
        for (int64_t h = 0; h < heads; ++h) scores[e * heads + h] = own[h] + other[h];
      }
    });
  });
  clear_padding(tile, scores);
  if (args.edge_logits) add_edge_logits(args, tile, own, scores);
  const Acc slope = static_cast<Acc>(args.negative_slope);
  const int64_t n = tile.padded();
  for (int64_t i = 0; i < n; ++i) logits[i] = scores[i] > 0 ? scores[i] : slope * scores[i];
}

// scores = weights, positive = used where s_e > 0, else 0
template <class Acc>
HALFGNN_NOINLINE void positive_weights(int64_t n, const Acc* __restrict used, const Acc* __restrict weights,
                                       Acc* __restrict scores, Acc* __restrict positive) {
  for (int64_t i = 0; i < n; ++i) {
    positive[i] = scores[i] > 0 ? used[i] : Acc(0);
    scores[i] = scores[i] > 0 ? weights[i] : Acc(0);
  }
}

// sums -= weight * others, a number a head
template <class B>
HALFGNN_NOINLINE void subtract_weighted(const Blocks<B>& blocks, const typename B::Acc* weight,
                                        const typename B::Acc* others, typename B::Acc* sums) {
  for (int64_t h = 0; h < blocks.heads; ++h)
    for (int64_t b = 0; b < blocks.per_head; ++b) {
      const int64_t slot = blocks.slot(h, b);
      const typename B::V other = scale(B::weight(weight[h]), B::load_acc(others + slot));
      B::store_acc(subtract(B::load_acc(sums + slot), other), sums + slot);
    }
}

// kPositive: the sum over positive edges, for the backward.
template <class B, bool kPositive>
void gat_forward_rows(const GatPass& pass, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  using Acc = typename B::Acc;
  const GatArgs& args = pass.args;
  const int64_t heads = args.heads;
  const Blocks<B> blocks(heads, args.dim);
  const T* feat = static_cast<const T*>(args.feat);
  const Acc* attn_src = static_cast<const Acc*>(pass.attn_src);

  EdgeTile tile(args.topology, heads, tile_edges(heads, 0), row_begin, row_end);
  const int64_t pairs = tile.capacity();
  Scratch<Acc> scores(pairs), weights(pairs), kept(pairs), positive(kPositive ? pairs : 0);
  Scratch<Acc> own(heads), factor(heads);
  Scratch<double> positive_weight(heads);
  RowSoftmax<Acc> softmax(tile);
  RunningSum<Acc> sum(blocks.workspace()), positive_sum(kPositive ? blocks.workspace() : 0);

  while (tile.next()) {
    const int64_t n = tile.padded();
    forward_scores(args, tile, attn_src, own.get(), scores.get(), weights.get());
    if (const Acc* rescale = softmax.subtract_maximum(weights.get())) {
      sum.rescale(heads, rescale);
      if (kPositive) {
        positive_sum.rescale(heads, rescale);
        for (int64_t h = 0; h < heads; ++h) positive_weight[h] *= rescale[h];
      }
    }
    exp_pairs(weights.get(), n);
    const Acc* used = weights;
    if (args.dropout.seed) {
      dropout_factors(args.dropout, tile, kept.get());
      multiply_pairs(n, weights.get(), kept.get());
      used = kept;
    }
    if (kPositive) positive_weights(n, used, weights.get(), scores.get(), positive.get());
    each_row(tile, [&](int64_t row, int64_t first, int64_t last) {
      softmax.add(row, weights.get());
      if (tile.starts) sum.start();
      if constexpr (kPositive) {
        add_row_pairs(tile, first, last, scores.get(), positive_weight.get());
        if (tile.starts) positive_sum.start();
        add_edges<B, 2>(blocks, tile, feat, true, first, last, {used, positive.get()}, {&sum, &positive_sum});
      } else {
        add_edges<B, 1>(blocks, tile, feat, true, first, last, {used}, {&sum});
      }
      if (!tile.finishes) return;
      const bool empty = tile.starts && first == last;
      finish_softmax(softmax, heads, row, empty, factor.get(), args.lse);
      const Acc* total = sum.finish();
      store_precise(blocks, total, factor.get(), args.out, row);
      if constexpr (kPositive) {
        for (int64_t h = 0; h < heads; ++h)
          own[h] = empty ? Acc(0) : static_cast<Acc>(positive_weight[h] * softmax.inverse(h));
        Acc* positive_total = positive_sum.finish();
        subtract_weighted(blocks, own.get(), total, positive_total);
        store_precise(blocks, positive_total, factor.get(), {args.positive, nullptr}, row);
      }
    });
  }
}

// For the destinations: delta = <g, out>, grad_attn_dst = (1 - slope) <g, positive>, and the records.
template <class B>
void gat_node_rows(const GatPass& pass, int64_t node_begin, int64_t node_end) {
  using T = typename B::Element;
  using Acc = typename B::Acc;
  const GatArgs& args = pass.args;
  const int64_t heads = args.heads;
  const HeadBlocks<B> blocks(heads, args.dim);
  const Operand attn_dst{args.attn_dst, args.logit_type, heads, 0, Target::kRow};
  const Acc below = 1 - static_cast<Acc>(args.negative_slope);
  Scratch<Acc> grad_attn(heads);
  for (int64_t node = node_begin; node < node_end; ++node) {
    const T* grad = static_cast<const T*>(args.grad) + node * blocks.len();
    Acc* record = static_cast<Acc*>(pass.records) + node * kGatRecord * heads;
    Acc* delta = record + 2 * heads;
    decode_pairs(attn_dst, node, record);
    memcpy(record + heads, static_cast<const Acc*>(args.lse) + node * heads, static_cast<size_t>(heads) * sizeof(Acc));
    dot_precise(blocks, grad, args.out, node, delta);
    dot_precise(blocks, grad, {args.positive, nullptr}, node, grad_attn.get());
    for (int64_t h = 0; h < heads; ++h) grad_attn[h] *= below;
    encode_pairs(grad_attn.get(), heads, args.logit_type, args.grad_attn_dst, node);
  }
}

// Of the K gradients at grads: sum += weight_k grad_k and dots_k = <own, grad_k>, reading each once.
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

// a_e, delta and s_e of a tile's edges; own: scratch for a row's logits
template <class Acc>
HALFGNN_NOINLINE void backward_weights(const GatArgs& args, const EdgeTile& tile, const Acc* records, Acc* own,
                                       Acc* __restrict lse, Acc* __restrict delta, Acc* __restrict scores,
                                       Acc* __restrict weights) {
  const Operand attn_src{args.attn_src, args.logit_type, args.heads, 0, Target::kRow};
  with_columns(args.heads, [&](auto columns) {
    const int64_t heads = columns.count();
    each_row(tile, [&](int64_t row, int64_t first, int64_t last) {
      if (first == last) return;
      decode_pairs(attn_src, row, own);
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
  if (args.edge_logits) add_edge_logits(args, tile, own, scores);
  const Acc slope = static_cast<Acc>(args.negative_slope);
  const int64_t n = tile.padded();
  for (int64_t i = 0; i < n; ++i) weights[i] = (scores[i] > 0 ? scores[i] : slope * scores[i]) - lse[i];
  exp_pairs(weights, n);
}

// delta = a_e delta; of that and of `used`, where s_e > 0: scores and positive.
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
  const int64_t n = tile.pairs();
  for (int64_t i = 0; i < n; ++i) {
    const Acc dot = factors ? factors[i] * dots[i] : dots[i];
    const Acc term = weights[i] * (dot - delta[i]);
    scores[i] = scores[i] > 0 ? term : slope * term;
  }
  const int64_t bytes = args.heads * size_of(args.logit_type);
  for (int64_t e = 0; e < tile.num_edges(); ++e) prefetch_edge_for_write(args.grad_edge_logits, tile.edge_id(e), bytes);
  for (int64_t e = 0; e < tile.num_edges(); ++e)
    encode_pairs(scores + e * args.heads, args.heads, args.logit_type, args.grad_edge_logits, tile.edge_id(e));
}

// kEdges: the gradient of edge_logits, for which every edge needs a dot product.
template <class B, bool kEdges>
void gat_backward_rows(const GatPass& pass, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  using Acc = typename B::Acc;
  const GatArgs& args = pass.args;
  const int64_t heads = args.heads;
  const HeadBlocks<B> blocks(heads, args.dim);
  const int64_t len = blocks.len();
  const T* feat = static_cast<const T*>(args.feat);
  const T* grad = static_cast<const T*>(args.grad);
  const Acc* records = static_cast<const Acc*>(pass.records);
  const Acc slope = static_cast<Acc>(args.negative_slope);

  EdgeTile tile(args.topology, heads, tile_edges(heads, 0), row_begin, row_end);
  const int64_t pairs = tile.capacity();
  Scratch<Acc> scores(pairs), weights(pairs), lse(pairs), delta(pairs), factors(pairs), kept(pairs);
  Scratch<Acc>& dots = lse;  // that are not needed any more
  Scratch<Acc>& positive = lse;
  Scratch<Acc> own(heads), own_feat(blocks.workspace()), grad_attn(heads), all_dots(heads), positive_dots(heads);
  Scratch<double> all_deltas(heads), positive_deltas(heads);
  RunningSum<Acc> sum(blocks.workspace()), positive_sum(kEdges ? 0 : blocks.workspace());

  while (tile.next()) {
    const int64_t n = tile.padded();
    backward_weights(args, tile, records, own.get(), lse.get(), delta.get(), scores.get(), weights.get());
    const Acc* used = weights;
    if (args.dropout.seed) {
      dropout_factors(args.dropout, tile, factors.get());
      memcpy(kept.get(), weights.get(), static_cast<size_t>(n) * sizeof(Acc));
      multiply_pairs(n, factors.get(), kept.get());
      used = kept;
    }
    if constexpr (kEdges) {
      each_row(tile, [&](int64_t row, int64_t first, int64_t last) {
        if (tile.starts) sum.start();
        if (tile.starts && first < last) load_own(blocks, feat + row * len, own_feat.get());
        add_and_dot_edges(blocks, tile, grad, first, last, own_feat.get(), used, &sum, dots.get());
        if (tile.finishes) store_sums(blocks, sum.finish(), static_cast<T*>(args.grad_feat) + row * len);
      });
      store_edge_gradients(args, tile, args.dropout.seed ? factors.get() : nullptr, weights.get(), dots.get(),
                           delta.get(), scores.get());
      each_row(tile, [&](int64_t row, int64_t first, int64_t last) {
        add_row_pairs(tile, first, last, scores.get(), all_deltas.get());
        if (!tile.finishes) return;
        for (int64_t h = 0; h < heads; ++h) grad_attn[h] = static_cast<Acc>(all_deltas[h]);
        encode_pairs(grad_attn.get(), heads, args.logit_type, args.grad_attn_src, row);
      });
    } else {
      positive_terms(n, used, weights.get(), delta.get(), scores.get(), positive.get());
      each_row(tile, [&](int64_t row, int64_t first, int64_t last) {
        add_row_pairs(tile, first, last, delta.get(), all_deltas.get());
        add_row_pairs(tile, first, last, scores.get(), positive_deltas.get());
        if (tile.starts) {
          sum.start();
          positive_sum.start();
        }
        add_edges<B, 2>(blocks, tile, grad, true, first, last, {used, positive.get()}, {&sum, &positive_sum});
        if (!tile.finishes) return;
        const Acc* total = sum.finish();
        store_sums(blocks, total, static_cast<T*>(args.grad_feat) + row * len);
        dot_sums(blocks, total, feat + row * len, all_dots.get());
        dot_sums(blocks, positive_sum.finish(), feat + row * len, positive_dots.get());
        for (int64_t h = 0; h < heads; ++h)
          grad_attn[h] = static_cast<Acc>(slope * (all_dots[h] - all_deltas[h]) +
                                          (1 - slope) * (positive_dots[h] - positive_deltas[h]));
        encode_pairs(grad_attn.get(), heads, args.logit_type, args.grad_attn_src, row);
      });
    }
  }
}

}  // namespace HALFGNN_ISA
}  // namespace halfgnn
