// The passes that the fused attentions are made of, and the table of them: built once for each instruction set and
// chosen at run time, as kernels.h says. "Acc" is the type that is computed in: fp32, fp64 for fp64 data.
#pragma once

#include "../../core/attention.h"

namespace halfgnn {

// A pass of GAT and what the passes hand on. Node records hold the values of all heads side by side, so that a gather
// of one copies vectors: (num_dst, kGatRecord, heads) of Acc.
constexpr int64_t kGatRecord = 4;  // attn_dst, lse, delta and padding: a cache line for four heads
struct GatPass {
  const GatArgs& args;
  const void* attn_src = nullptr;  // (num_src, heads) of Acc; forward only
  void* records = nullptr;         // backward only
};

// GATv2 and dot attention, whose logits are functions of two rows of features: one at the row of the adjacency that is
// walked, one at the column. `score` rows make the logit. With g the gradient of out, `value` rows are
//   forward            column: what is summed
//   backward, CSC      row: g           column: value
//   backward, CSR      row: value       column: g
// Node records are (num_dst, kPairRecord, heads) of Acc.
constexpr int64_t kPairRecord = 2;  // lse, delta
struct PairPass {
  Topology topology;
  int64_t heads = 1, dim = 0;
  DType type = DType::kFloat;
  Dropout dropout;
  const void *row_score = nullptr, *col_score = nullptr;
  const void *row_value = nullptr, *col_value = nullptr;
  const void* attn = nullptr;  // null: dot attention
  double slope = 0;            // GATv2
  double scale = 1;            // dot attention

  Precise out;  // of the forward
  void* lse = nullptr;

  void* records = nullptr;
  bool by_src = false;           // rows are sources: CSR
  void* grad_score = nullptr;    // of row_score
  void* grad_value = nullptr;    // of row_value, dot attention and CSR only
  void* partial_attn = nullptr;  // (heads, dim) of Acc: this call's share of the gradient of attn
};

// delta[v] = <g[v], out[v]>, with what the records need beside it.
struct PairNodes {
  int64_t heads = 1, dim = 0;
  DType type = DType::kFloat;
  Precise out;
  const void* grad = nullptr;
  const void* lse = nullptr;
  void* records = nullptr;
};

struct AttentionTable {
  void (*gat_forward)(const GatPass&, int64_t row_begin, int64_t row_end);
  void (*gat_nodes)(const GatPass&, int64_t node_begin, int64_t node_end);  // destinations: records, grad_attn_dst
  void (*gat_backward)(const GatPass&, int64_t row_begin, int64_t row_end);
  void (*pair_forward)(const PairPass&, int64_t row_begin, int64_t row_end);
  void (*pair_nodes)(const PairNodes&, int64_t node_begin, int64_t node_end);
  void (*pair_backward)(const PairPass&, int64_t row_begin, int64_t row_end);
  // out[i] of Acc for the values [begin, end) of `type`
  void (*widen)(DType type, const void* values, void* out, int64_t begin, int64_t end);
  // out[i] of `type` = sum over j < count of parts[j * n + i] of Acc, in fp64
  void (*add_parts)(const void* parts, int64_t count, int64_t n, DType type, void* out);
};

// The best table for this processor.
const AttentionTable& attention_kernels();

}  // namespace halfgnn
