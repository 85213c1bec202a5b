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

// A pass of a pair attention over CSC or, if by_src, over CSR. Two rows of features make the logit of an edge, the
// `score` rows: one at the row of the adjacency that is walked, one at the column. `value` rows are multiplied by the
// weight of the edge, or by one another:
//                      row: score, value   column: score, value
//   forward            query               key, value
//   backward, CSC      query, grad         key, value
//   backward, CSR      key, value          query, grad
// Records are (num_dst, kPairRecord, heads) of Acc.
constexpr int64_t kPairRecord = 2;  // lse, delta
struct PairPass {
  const PairAttentionArgs& args;
  bool by_src = false;  // rows are sources: CSR

  void* records = nullptr;
  void* partial_attn = nullptr;    // (heads, dim) of Acc: this call's share of the gradient of attn
  void* partial_weight = nullptr;  // (heads, dim, edge.feat_dim) of Acc: that of the gradient of edge.weight
  // (E, edge_record_len()) of Acc, in the order of edge data: a_e m_e and dl_e of each head and, for kLeaky, the signs
  // of z_e. Backward with edge terms only: CSC writes them and CSR reads them, so that what is added to logits is
  // computed once.
  void* edge_records = nullptr;

  const Topology& topology() const { return by_src ? args.by_src : args.topology; }
};
// A word of signs takes the place of a value.
inline int64_t sign_words(int64_t dim) { return (dim + 31) / 32; }
inline int64_t edge_record_len(const PairAttentionArgs& args) {
  return args.heads * (2 + (args.score == PairScore::kLeaky ? sign_words(args.dim) : 0));
}

// The records of a pair attention's destinations. delta[v] = <g[v], out[v]>.
struct PairNodes {
  int64_t heads = 1, dim = 0;
  DType type = DType::kFloat;
  Precise out;
  const void* grad = nullptr;
  const void* lse = nullptr;
  void* records = nullptr;
};

}  // namespace halfgnn
