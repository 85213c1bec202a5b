// Operators over an edge list in any order: the arguments. Torch-free, like arguments.h.
#pragma once

#include "types.h"

namespace halfgnn {

// The ends of edges, of which neither is sorted: ids that have been checked. A side that is null is that of edges
// themselves: the end of edge e is e.
struct EdgeList {
  const void* row = nullptr;
  const void* col = nullptr;
  int64_t num_edges = 0;
  bool is_int64 = false;
};

// out[row] += feat[col], feat[col] weight[e], feat[col] + addend[e] or its relu, for one edge after the other. out
// holds zeros before. fp32, or fp64 with is_double.
struct CooSumArgs {
  EdgeList edges;
  const void* feat = nullptr;
  const void* weight = nullptr;  // (num_edges,); may be null
  const void* addend = nullptr;  // (num_edges, dim); may be null
  bool has_relu = false;         // of sums with addend
  int64_t dim = 0;
  bool is_double = false;
  void* out = nullptr;
};

// out[e] = feat[ids[e]]
struct CooGatherArgs {
  const void* ids = nullptr;
  bool is_int64 = false;
  const void* feat = nullptr;
  int64_t row_bytes = 0;  // two at least
  void* out = nullptr;
};

// out[e] = <lhs[row], rhs[col]>
struct CooDotArgs {
  EdgeList edges;
  const void* lhs = nullptr;
  const void* rhs = nullptr;
  int64_t dim = 0;
  bool is_double = false;
  void* out = nullptr;  // (num_edges,)
};

// The gradient of each relu(feat[col] + addend[e]): stored as grad_addend[e], and added to grad_feat[col], which holds
// zeros before. Either may be null.
struct CooReluBackwardArgs {
  EdgeList edges;
  const void* feat = nullptr;
  const void* addend = nullptr;
  const void* grad = nullptr;  // of the rows
  int64_t dim = 0;
  bool is_double = false;
  void* grad_feat = nullptr;
  void* grad_addend = nullptr;
};

// out[row] = rows[row] / max(counts[row], 1). out may be rows.
struct DivideRowsArgs {
  const void* rows = nullptr;
  const int64_t* counts = nullptr;
  int64_t num_rows = 0;
  int64_t dim = 0;
  bool is_double = false;
  void* out = nullptr;
};

// out[e] = exp(logits[e]) / their sum over the edges of row[e], column by column. fp32, or fp64 with is_double.
struct CooSoftmaxArgs {
  const void* row = nullptr;
  int64_t num_edges = 0;
  bool is_int64 = false;
  int64_t num_rows = 0;
  int64_t dim = 0;
  bool is_double = false;
  const void* logits = nullptr;
  void* of_rows = nullptr;  // workspace (2, num_rows, dim)
  void* out = nullptr;
};

// out[e] = softmax[e] (grad[e] - the sum of softmax grad over the edges of row[e])
struct CooSoftmaxBackwardArgs {
  CooSoftmaxArgs forward;  // logits is null
  const void* softmax = nullptr;
  const void* grad = nullptr;
};

}  // namespace halfgnn
