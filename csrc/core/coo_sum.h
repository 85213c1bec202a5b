// Sums over an edge list in any order: the arguments. Torch-free, like arguments.h.
#pragma once

#include "types.h"

namespace halfgnn {

// The ends of edges, of which neither is sorted: ids that have been checked.
struct EdgeList {
  const void* row = nullptr;
  const void* col = nullptr;
  int64_t num_edges = 0;
  bool is_int64 = false;
};

// out[row] += feat[col] weight[e], for one edge after the other. out holds zeros before. fp32, or fp64 with is_double.
struct CooSumArgs {
  EdgeList edges;
  const void* feat = nullptr;
  const void* weight = nullptr;  // (num_edges,); may be null
  int64_t dim = 0;
  bool is_double = false;
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

// out[row] = rows[row] / max(counts[row], 1). out may be rows.
struct DivideRowsArgs {
  const void* rows = nullptr;
  const int64_t* counts = nullptr;
  int64_t num_rows = 0;
  int64_t dim = 0;
  bool is_double = false;
  void* out = nullptr;
};

}  // namespace halfgnn
