// Pair attentions, GATv2 and dot: the kernels of the table.
#pragma once

#include "../kernels.h"
#include "pair_backward.h"
#include "pair_forward.h"

namespace halfgnn::HALFGNN_ISA {

// f(score, edges), of the types that a pass is made for.
template <class B, class F>
inline void with_policies(const PairAttentionArgs& args, F f) {
  const bool has_edges = args.edge.any();
  if (args.score == PairScore::kLeaky && has_edges) return f(Type<LeakyScore<B>>{}, Type<LeakyEdges<B>>{});
  if (args.score == PairScore::kLeaky) return f(Type<LeakyScore<B>>{}, Type<NoEdges<B>>{});
  if (has_edges) return f(Type<DotScore<B>>{}, Type<DotEdges<B>>{});
  return f(Type<DotScore<B>>{}, Type<NoEdges<B>>{});
}

static void pair_forward(const PairPass& pass, int64_t begin, int64_t end) {
  with_attention_block<true>(pass.args.type, pass.args.dim, [&](auto b) {
    using B = decltype(b);
    with_policies<B>(pass.args, [&](auto score, auto edges) {
      PairForward<B, TypeOf<decltype(score)>, TypeOf<decltype(edges)>>(pass, begin, end).run();
    });
  });
}
static void pair_nodes(const PairNodes& nodes, int64_t begin, int64_t end) {
  with_attention_block<true>(nodes.type, nodes.dim, [&](auto b) { pair_node_rows<decltype(b)>(nodes, begin, end); });
}
static void pair_backward(const PairPass& pass, int64_t begin, int64_t end) {
  with_attention_block<true>(pass.args.type, pass.args.dim, [&](auto b) {
    using B = decltype(b);
    with_policies<B>(pass.args, [&](auto score, auto edges) {
      using Score = TypeOf<decltype(score)>;
      using Edges = TypeOf<decltype(edges)>;
      if (pass.by_src) return PairBackward<B, Score, true, Edges>(pass, begin, end).run();
      PairBackward<B, Score, false, Edges>(pass, begin, end).run();
    });
  });
}

template <class Acc>
inline void add_parts_as(const Acc* parts, int64_t count, int64_t n, DType type, void* out) {
  Buffer<double> total(n);
  Buffer<Acc> result(n);
  for (int64_t i = 0; i < n; ++i) total[i] = 0;
  for (int64_t j = 0; j < count; ++j)
    for (int64_t i = 0; i < n; ++i) total[i] += parts[j * n + i];
  for (int64_t i = 0; i < n; ++i) result[i] = static_cast<Acc>(total[i]);
  encode(result.get(), n, type, out, 0);
}
static void add_parts(const void* parts, int64_t count, int64_t n, DType type, void* out) {
  if (type == DType::kDouble) return add_parts_as(static_cast<const double*>(parts), count, n, type, out);
  add_parts_as(static_cast<const float*>(parts), count, n, type, out);
}

extern const PairKernels kPair;
const PairKernels kPair = {pair_forward, pair_nodes, pair_backward, add_parts};

}  // namespace halfgnn::HALFGNN_ISA
