// GAT's attention: the kernels of the table.
#pragma once

#include "../kernels.h"
#include "gat_backward.h"
#include "gat_forward.h"

namespace halfgnn::HALFGNN_ISA {

static void widen(DType type, const void* values, void* out, int64_t begin, int64_t end) {
  const int64_t n = end - begin;
  const Operand operand{static_cast<const char*>(values) + begin * size_of(type), type, n, 1, Target::kRow};
  if (type == DType::kDouble) return decode(operand, 0, static_cast<double*>(out) + begin);
  decode(operand, 0, static_cast<float*>(out) + begin);
}
static void gat_forward(const GatPass& pass, int64_t begin, int64_t end) {
  with_attention_block<false>(pass.args.type, pass.args.dim, [&](auto b) {
    if (pass.args.positive) return GatForward<decltype(b), true>(pass, begin, end).run();
    return GatForward<decltype(b), false>(pass, begin, end).run();
  });
}
static void gat_nodes(const GatPass& pass, int64_t begin, int64_t end) {
  with_attention_block<false>(pass.args.type, pass.args.dim,
                              [&](auto b) { gat_node_rows<decltype(b)>(pass, begin, end); });
}
static void gat_backward(const GatPass& pass, int64_t begin, int64_t end) {
  with_attention_block<false>(pass.args.type, pass.args.dim, [&](auto b) {
    if (pass.args.grad_edge_logits) return GatBackward<decltype(b), true>(pass, begin, end).run();
    return GatBackward<decltype(b), false>(pass, begin, end).run();
  });
}

extern const GatKernels kGat;
const GatKernels kGat = {widen, gat_forward, gat_nodes, gat_backward};

}  // namespace halfgnn::HALFGNN_ISA
