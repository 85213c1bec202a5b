// What the attention kernels are asked to compute. A fused attention is made of passes over an adjacency; the argument
// structs of the whole operators are in core/attention.h. Acc is the type that is computed in: fp32, or fp64 for fp64
// data.
//
// Node records hold the values of all heads side by side, so that a gather of a record copies vectors.
#pragma once

#include "../../../core/attention.h"

namespace halfgnn {

// A pass of GAT. Records are (num_dst, kGatRecord, heads) of Acc.
constexpr int64_t kGatRecord = 4;  // attn_dst, lse, delta and padding: a cache line for four heads
struct GatPass {
  const GatArgs& args;
  const void* attn_src = nullptr;  // (num_src, heads) of Acc; forward only
  void* records = nullptr;         // backward only
};

// A pass of GATv2 or dot attention, whose logits are functions of two rows of features: one at the row of the adjacency
// that is walked, one at the column. `score` rows make the logit. With g the gradient of out, `value` rows are
//   forward            column: what is summed
//   backward, CSC      row: g           column: value
//   backward, CSR      row: value       column: g
// Records are (num_dst, kPairRecord, heads) of Acc.
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
  EdgeTerms edge;              // dot attention and CSR: edge_records is read in their place

  Precise out;  // of the forward
  void* lse = nullptr;

  void* records = nullptr;
  bool by_src = false;             // rows are sources: CSR
  void* grad_score = nullptr;      // of row_score
  void* grad_value = nullptr;      // of row_value; dot attention and CSR only
  void* partial_attn = nullptr;    // (heads, dim) of Acc: this call's share of the gradient of attn
  void* partial_weight = nullptr;  // (heads, dim, edge.feat_dim) of Acc: that of the gradient of edge.weight
  // (E, edge_record_len()) of Acc, in the order of edge data: a_e m_e and dl_e of each head and, in GATv2, the signs of
  // z_e. Backward with edge terms only: CSC writes them and CSR reads them, so that what is added to logits is computed
  // once.
  void* edge_records = nullptr;
};
// A word of signs takes the place of a value.
inline int64_t sign_words(int64_t dim) { return (dim + 31) / 32; }
inline int64_t edge_record_len(int64_t heads, int64_t dim, bool has_signs) {
  return heads * (2 + (has_signs ? sign_words(dim) : 0));
}

// The records of GATv2's or dot attention's destinations. delta[v] = <g[v], out[v]>.
struct PairNodes {
  int64_t heads = 1, dim = 0;
  DType type = DType::kFloat;
  Precise out;
  const void* grad = nullptr;
  const void* lse = nullptr;
  void* records = nullptr;
};

}  // namespace halfgnn
