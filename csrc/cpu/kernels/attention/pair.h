// GATv2's attention and dot attention: the kernels of the table.
#pragma once

#include "../kernels.h"
#include "pair_backward.h"
#include "pair_forward.h"

namespace halfgnn::HALFGNN_ISA {

static void pair_forward(const PairPass& pass, int64_t begin, int64_t end) {
  with_attention_block(pass.type, pass.dim, [&](auto b) {
    using B = decltype(b);
    if (pass.attn && pass.edge.any()) return PairForward<B, LeakyScore<B>, LeakyEdges<B>>(pass, begin, end).run();
    if (pass.attn) return PairForward<B, LeakyScore<B>, NoEdges<B>>(pass, begin, end).run();
    if (pass.edge.any()) return PairForward<B, DotScore<B>, DotEdges<B>>(pass, begin, end).run();
    return PairForward<B, DotScore<B>, NoEdges<B>>(pass, begin, end).run();
  });
}
static void pair_nodes(const PairNodes& nodes, int64_t begin, int64_t end) {
  with_attention_block(nodes.type, nodes.dim, [&](auto b) { pair_node_rows<decltype(b)>(nodes, begin, end); });
}
template <class B, class Score, class Edges>
inline void pair_backward_as(const PairPass& pass, int64_t begin, int64_t end) {
  if (pass.by_src) return PairBackward<B, Score, true, Edges>(pass, begin, end).run();
  return PairBackward<B, Score, false, Edges>(pass, begin, end).run();
}
static void pair_backward(const PairPass& pass, int64_t begin, int64_t end) {
  with_attention_block(pass.type, pass.dim, [&](auto b) {
    using B = decltype(b);
    if (pass.attn && pass.edge.any()) return pair_backward_as<B, LeakyScore<B>, LeakyEdges<B>>(pass, begin, end);
    if (pass.attn) return pair_backward_as<B, LeakyScore<B>, NoEdges<B>>(pass, begin, end);
    if (pass.edge.any()) return pair_backward_as<B, DotScore<B>, DotEdges<B>>(pass, begin, end);
    return pair_backward_as<B, DotScore<B>, NoEdges<B>>(pass, begin, end);
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
