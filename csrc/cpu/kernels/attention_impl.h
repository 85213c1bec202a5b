// Builds the attention table of one instruction set. Included once for each, by files that build_sources.py writes:
// they define HALFGNN_ISA.
#pragma once

#include <type_traits>

#include "gat_attention_kernel.h"
#include "pair_attention_kernel.h"

namespace halfgnn {
namespace HALFGNN_ISA {

// f(a block of type B) for the blocks that heads of `dim` elements of `type` are cut into.
template <class F>
inline void with_attention_block(DType type, int64_t dim, F f) {
  with_type(type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    if constexpr (sizeof(T) == 8) {
      return f(SingleBlock<double, double>{});
    } else {
      if constexpr (std::is_same<T, BFloat16>::value) {
        if (dim >= 16) return f(WideBlock<T, 16>{});
      }
      if (dim >= 8) return f(WideBlock<T, 8>{});
      return f(SingleBlock<T, float>{});
    }
  });
}

static void gat_forward(const GatPass& pass, int64_t begin, int64_t end) {
  with_attention_block(pass.args.type, pass.args.dim, [&](auto b) {
    if (pass.args.positive) return gat_forward_rows<decltype(b), true>(pass, begin, end);
    return gat_forward_rows<decltype(b), false>(pass, begin, end);
  });
}
static void gat_nodes(const GatPass& pass, int64_t begin, int64_t end) {
  with_attention_block(pass.args.type, pass.args.dim, [&](auto b) { gat_node_rows<decltype(b)>(pass, begin, end); });
}
static void gat_backward(const GatPass& pass, int64_t begin, int64_t end) {
  with_attention_block(pass.args.type, pass.args.dim, [&](auto b) {
    if (pass.args.grad_edge_logits) return gat_backward_rows<decltype(b), true>(pass, begin, end);
    return gat_backward_rows<decltype(b), false>(pass, begin, end);
  });
}

static void pair_forward(const PairPass& pass, int64_t begin, int64_t end) {
  with_attention_block(pass.type, pass.dim, [&](auto b) {
    using B = decltype(b);
    if (pass.attn) return pair_forward_rows<B, LeakyScore<B>>(pass, begin, end);
    return pair_forward_rows<B, DotScore<B>>(pass, begin, end);
  });
}
static void pair_nodes(const PairNodes& nodes, int64_t begin, int64_t end) {
  with_attention_block(nodes.type, nodes.dim, [&](auto b) { pair_node_rows<decltype(b)>(nodes, begin, end); });
}
template <class B, class Score>
inline void pair_backward_as(const PairPass& pass, int64_t begin, int64_t end) {
  if (pass.by_src) return pair_backward_rows<B, Score, true>(pass, begin, end);
  return pair_backward_rows<B, Score, false>(pass, begin, end);
}
static void pair_backward(const PairPass& pass, int64_t begin, int64_t end) {
  with_attention_block(pass.type, pass.dim, [&](auto b) {
    using B = decltype(b);
    if (pass.attn) return pair_backward_as<B, LeakyScore<B>>(pass, begin, end);
    return pair_backward_as<B, DotScore<B>>(pass, begin, end);
  });
}

static void widen(DType type, const void* values, void* out, int64_t begin, int64_t end) {
  const int64_t n = end - begin;
  const char* from = static_cast<const char*>(values) + begin * size_of(type);
  if (type == DType::kDouble)
    return decode(Operand{from, type, n, 1, Target::kRow}, 0, static_cast<double*>(out) + begin);
  decode(Operand{from, type, n, 1, Target::kRow}, 0, static_cast<float*>(out) + begin);
}

template <class Acc>
inline void add_parts_as(const Acc* parts, int64_t count, int64_t n, DType type, void* out) {
  Scratch<double> total(n);
  Scratch<Acc> result(n);
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

extern const AttentionTable kAttentionKernels;
const AttentionTable kAttentionKernels = {gat_forward, gat_nodes,     gat_backward, pair_forward,
                                          pair_nodes,  pair_backward, widen,        add_parts};

}  // namespace HALFGNN_ISA
}  // namespace halfgnn
