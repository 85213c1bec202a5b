// The arguments of the fused attentions, for both back ends. Torch-free; conventions as in arguments.h.
//
// For an edge e from u to v and a head h, with l_e the edge's logit:
//   a_e = exp(l_e - lse[v]), lse[v] = log of the sum of exp(l_e) over v's in-edges
//   m_e = 0 with probability p, else 1 / (1 - p)
//   out[v] = sum over v's in-edges of a_e m_e value[u]
// A row whose logits are all -inf has lse 0 and out 0, as a row without edges has. GAT on CUDA gives NaN there, for
// now. The forward walks CSC (rows are destinations), the backward CSR or both. Nothing of size E x H is stored. lse is
// fp32 (fp64 for fp64 data).
#pragma once

#include <cstdint>

#include "arguments.h"

namespace halfgnn {

// Which entries an attention drops: a function of the seed, the edge (its row of edge data, whichever adjacency is
// walked) and the head. So the backward drops the same entries. See philox.h.
struct Dropout {
  const int64_t* seed = nullptr;  // two words, on the device; null: nothing is dropped
  uint32_t threshold = 0;         // an entry is dropped if its random word is below
  double scale = 1;               // factor of the entries that stay
};

// A result that the backward needs more precisely than `type`: its rounded value, and what rounding lost. Both have
// `type`.
struct Precise {
  void* value = nullptr;
  void* residual = nullptr;  // null: not needed
};

// l_e = LeakyReLU(s_e), s_e = attn_src[u] + attn_dst[v] + edge_logits[e]; value = feat.
//
// The gradients of attn_dst and attn_src need sums over the edges with s_e > 0 (written sum+), where the slope of
// LeakyReLU is 1. The gradients of a node's logits sum to zero, so no edge needs a dot product (docs/attention.md).
struct GatArgs {
  Topology topology;     // CSC; backward: CSR
  int64_t num_cols = 0;  // sources; backward: destinations
  int64_t heads = 1, dim = 0;
  DType type = DType::kFloat;         // of feat, out and gradients of feat
  const void* feat = nullptr;         // (num_src, heads, dim)
  DType logit_type = DType::kFloat;   // `type`, or float; of the three below and of their gradients
  const void* attn_src = nullptr;     // (num_src, heads)
  const void* attn_dst = nullptr;     // (num_dst, heads); CUDA's forward: both may be null, and then count as 0
  const void* edge_logits = nullptr;  // (E, heads); null: none
  double negative_slope = 0.2;
  Dropout dropout;

  // Forward: results. Backward: the results of the forward, read only.
  Precise out;          // (num_dst, heads, dim)
  void* lse = nullptr;  // (num_dst, heads); 0 where a row is empty. Null in a forward without a backward.
  // (num_dst, heads, dim), of `type`: sum+ a_e (m_e feat[u] - out[v]), rounded after the subtraction. Null in a
  // forward without a backward of GAT.
  void* positive = nullptr;

  // Backward only.
  const void* grad = nullptr;  // of out, of `type`
  void* grad_feat = nullptr;
  void* grad_attn_src = nullptr;
  void* grad_attn_dst = nullptr;
  void* grad_edge_logits = nullptr;  // null: not needed
};

// How the logit of an edge comes from a pair of rows, the query of its destination and the key of its source.
enum class PairScore {
  kDot,   // dot attention: factor <query, key>
  kLeaky  // GATv2: <attn, LeakyReLU(query + key)>, whose slope below 0 is factor
};

// What edges add to a pair attention, with f_e the row of `feat` (all heads share it) and a_e, m_e as above. A null
// pointer means that the term is absent. Acc is float, or double for double data.
//   kDot    l_e = factor (<query[v], key[u] + edge.key[e]> + <edge.query[v], f_e>) + bias[e]
//           out[v] = sum of a_e m_e (value[u] + edge.value[e]),  edge.out[v] = sum of a_e m_e f_e
//   kLeaky  l_e = <attn, LeakyReLU(query[v] + key[u] + edge.key[e] + edge.weight f_e)> + bias[e]
// Where dot attention projects f_e by W_k and W_v, edge.query = W_k^T query, and W_v edge.out is added to out: rows of
// `heads * dim` elements per edge are never made (docs/attention.md). Kernels for the CPU do so if they are given
// edge.key_weight and edge.value_weight. A caller of the others does it before and after them.
struct EdgeTerms {
  const void* bias = nullptr;       // (E, heads), of bias_type: `type` or float. -inf removes an edge.
  DType bias_type = DType::kFloat;  // also of grad_bias
  const void* key = nullptr;        // (E, heads, dim), of `type`
  const void* value = nullptr;      // (E, heads, dim), of `type`
  int64_t feat_dim = 0;             // elements of f_e
  const void* feat = nullptr;       // (E, feat_dim), of `type`
  const void* weight = nullptr;     // (heads, dim, feat_dim), of `type`; kLeaky alone, without `key`
  const void* query = nullptr;      // (num_dst, heads, feat_dim) of Acc; kDot alone, as are out and wide_out
  void* out = nullptr;              // (num_dst, heads, feat_dim) of Acc; the attention's `out` is then wide_out
  void* wide_out = nullptr;         // (num_dst, heads, dim) of Acc
  // W_k and W_v (heads, dim, feat_dim), of `type`; kDot on the CPU alone. With key_weight, `query` is null. With
  // value_weight, the attention's `out` has the whole sum, `out` is not needed, and grad_out is null.
  const void* key_weight = nullptr;
  const void* value_weight = nullptr;

  // Backward only. grad_query of the attention is of Acc if `query` is not null.
  const void* grad_out = nullptr;  // gradient of `out`, of Acc
  void* grad_bias = nullptr;
  void* grad_key = nullptr;
  void* grad_value = nullptr;   // null although grad_key is not and key == value: grad_key has the sum of both
  void* grad_feat = nullptr;    // of `type`
  void* grad_weight = nullptr;  // of `type`
  void* grad_query = nullptr;   // of Acc: of `query`, or of W_k^T query

  bool any() const { return bias || key || value || feat; }
};

// Which terms of edges the kernels of a back end take. Without terms they take heads of any size.
struct EdgeTermLimits {
  int64_t head_bytes = INT64_MAX;       // of a head
  int64_t dot_columns = INT64_MAX;      // feat_dim of kDot
  int64_t leaky_columns = INT64_MAX;    // feat_dim of kLeaky
  bool columns_beside_rows = true;      // whether `feat` may come with `key` or `value`
  int64_t half_columns_capability = 0;  // CUDA's major compute capability from which kLeaky takes `feat` of halves
  // Heads have multiples of so many bytes, and lie at such addresses. Rows of columns have multiples of so many
  // columns, and lie at multiples of them.
  int64_t row_bytes = 1, row_columns = 1;
};

// GATv2 (kLeaky) and dot attention (kDot), and what EdgeTerms adds. The features of GATv2's sources are its keys and
// its values, and those of its destinations are the queries.
struct PairAttentionArgs {
  PairScore score = PairScore::kDot;
  Topology topology;    // CSC
  Topology by_src;      // CSR, backward only
  int64_t num_src = 0;  // rows of key and value; a hint
  int64_t heads = 1, dim = 0;
  DType type = DType::kFloat;
  const void* query = nullptr;  // (num_dst, heads, dim)
  const void* key = nullptr;    // (num_src, heads, dim)
  const void* value = nullptr;  // (num_src, heads, dim); kLeaky: `key`
  const void* attn = nullptr;   // (heads, dim); kLeaky alone
  double factor = 1;            // see PairScore
  Dropout dropout;
  EdgeTerms edge;

  // Forward: results. Backward: the results of the forward, read only.
  Precise out;          // (num_dst, heads, dim)
  void* lse = nullptr;  // (num_dst, heads). Null in a forward without a backward.

  // Backward only.
  const void* grad = nullptr;  // of out
  void* grad_query = nullptr;
  void* grad_key = nullptr;    // kLeaky: of both uses of a key
  void* grad_value = nullptr;  // kDot alone
  void* grad_attn = nullptr;   // kLeaky alone
};

}  // namespace halfgnn
