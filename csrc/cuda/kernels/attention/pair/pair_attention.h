// The launcher behind GATv2 and dot attention (gatv2_attention.h, dot_attention.h).
//
// Both make the logit of an edge of a pair of rows: one of its destination, here the query, and one of its source, the
// key. They differ in how (PairKind), and in that the keys of GATv2 are its values too.
#pragma once

#include "../../../../core/attention.h"
#include "../../core/launch.h"

namespace halfgnn::cuda {

enum class PairKind {
  kDot,   // logit = linear <query, key>
  kGatv2  // logit = sum of attn (linear z + absolute |z|), z = query + key
};

// The constants of a logit.
struct PairLogit {
  const void* attn;  // of GATv2: (heads, dim)
  float linear;
  float absolute;  // of GATv2
  float slope;     // likewise: linear - absolute, as it was given
};

// What a call computes, in the words of dot attention. Shapes: query, out (num_dst, heads, dim), lse (num_dst, heads),
// key, value (num_src, heads, dim); a gradient has the shape of what it belongs to.
struct PairCall {
  PairKind kind;
  Topology topology;  // CSC
  Topology by_src;    // CSR; backward only
  int64_t num_src;    // rows of key and value; a hint
  int64_t heads, dim;
  DType type;
  const void* query;
  const void* key;
  const void* value;  // of GATv2: key
  PairLogit logit;
  Dropout dropout;
  EdgeTerms edge;

  // Forward: results. Backward: what the forward gave.
  Precise out;
  float* lse;

  // Backward only.
  const void* grad;  // of out
  void* grad_query;
  void* grad_key;    // of GATv2: of both uses of a key
  void* grad_value;  // of GATv2: null
  void* grad_attn;   // of GATv2
};

// Which terms of edges there are kernels for, and of which heads: see Backend in csrc/core/backend.h.
constexpr int64_t kEdgeTermsBytes = 16, kEdgeTermsColumns = 4;
bool has_edge_terms(const EdgeTerms& terms, DType type, int64_t dim);

size_t pair_attention_workspace(const PairCall& call);
cudaError_t pair_attention(const PairCall& call, const Launch& launch);

size_t pair_attention_backward_workspace(const PairCall& call);
cudaError_t pair_attention_backward(const PairCall& call, const Launch& launch);

}  // namespace halfgnn::cuda
