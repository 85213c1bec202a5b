// The arguments of every kernel, for both back ends. Torch-free: raw pointers; all memory is contiguous and on the
// device of the back end.
//
// Rows, columns and edges are those of the compressed adjacency that is walked. Sums are fp32 or better (fp64 for fp64
// data), rounded once; no result depends on how work is divided.
#pragma once

#include "types.h"

namespace halfgnn {

// A `mean_indptr` is the indptr of the nodes whose means were taken, of the topology's index type. Every term is
// multiplied by scale[node] = 1 / the node's number of edges there (1 for a node without edges). Null: by 1.

// out[row] = factor * sum over edges of weight[e, head] * scale[col] * feat[col or edge]
// feat and out: heads * dim elements per row. weight (num_edges, heads), of `weight_type`, may be null. The types may
// mix as may_mix() says.
struct SpmmSumArgs {
  Topology topology;
  const void* feat = nullptr;
  int64_t feat_rows = 0;
  bool feat_by_edge = false;
  DType type = DType::kFloat;  // half, bfloat16 or float
  const void* weight = nullptr;
  DType weight_type = DType::kFloat;
  const void* mean_indptr = nullptr;  // of the columns
  int64_t heads = 1;
  int64_t dim = 0;
  float factor = 1.f;
  bool divide_by_degree = false;
  void* out = nullptr;
  DType out_type = DType::kFloat;
};

// Messages of a source and an edge of the same width: out[row] = sum over edges of op(feat[col], edge[e]), divided by
// the row's number of edges if divide_by_degree is set. op: mul, add, sub (feat - edge) or relu_add (relu(feat + edge),
// in which NaN stays NaN). Messages are formed in fp32.
struct EdgeSumArgs {
  Topology topology;
  Op op = Op::kMul;
  const void* feat = nullptr;
  int64_t feat_rows = 0;
  const void* edge = nullptr;       // (num_edges, dim)
  DType type = DType::kFloat;       // of feat: half, bfloat16 or float
  DType edge_type = DType::kFloat;  // may mix with `type`
  int64_t dim = 0;
  bool divide_by_degree = false;
  void* out = nullptr;
  DType out_type = DType::kFloat;  // `type`, or float
};

// The gradients of that sum in one pass over out-edges (rows are sources). With g = scale[col] grad[col]:
//   mul        grad_edge[e] = g feat[row] ; grad_feat[row] = sum of g edge[e]
//   add, sub   grad_edge[e] = g or -g     ; grad_feat[row] = sum of g
//   relu_add   grad_edge[e] = g unless feat[row] + edge[e] <= 0, else 0 ; grad_feat[row] = sum of grad_edge before
//   rounding
struct EdgeSumBackwardArgs {
  Topology topology;
  Op op = Op::kMul;
  const void* feat = nullptr;  // may be null if it is not read: of mul only grad_edge reads it, of add and sub nothing
  const void* edge = nullptr;  // may be null if it is not read: of mul only grad_feat reads it, of add and sub nothing
  const void* grad = nullptr;
  int64_t grad_rows = 0;
  DType type = DType::kFloat;         // of feat and grad_feat
  DType edge_type = DType::kFloat;    // of edge and grad_edge: may mix with `type`
  DType grad_type = DType::kFloat;    // `type`, or float
  const void* mean_indptr = nullptr;  // of the columns
  int64_t dim = 0;
  void* grad_feat = nullptr;  // null: not wanted
  void* grad_edge = nullptr;  // (num_edges, dim); null: not wanted
};

// Several reductions of the rows of columns (or of edges) in one pass over each row's edges. Results that are null are
// not wanted. arg_max, arg_min: edge ids of the winners, -1 without edges. second moments are taken about means.
struct CopyReduceArgs {
  Topology topology;
  const void* feat = nullptr;
  int64_t feat_rows = 0;
  bool feat_by_edge = false;   // on the CPU
  DType type = DType::kFloat;  // half, bfloat16 or float
  int64_t dim = 0;
  float eps = 0.f;  // std is 0 where the variance is not greater
  // Of out_type.
  void* sum = nullptr;
  void* mean = nullptr;
  void* max = nullptr;
  void* min = nullptr;
  void* var = nullptr;
  void* std = nullptr;
  DType out_type = DType::kFloat;
  void* arg_max = nullptr;
  void* arg_min = nullptr;
  bool arg_is_int64 = false;
  // Unrounded, for the gradients of var and std.
  float* kept_mean = nullptr;
  float* kept_std = nullptr;
};

// Its gradient. Nodes are those that were reduced into. Gradients that are null count as 0; all are of grad_type.
struct CopyReduceBackwardArgs {
  Topology topology;  // rows are those of feat, columns are nodes
  // Rows are nodes: their degrees, and if indices are given, the edges into them.
  Topology in_edges;
  const void* feat = nullptr;  // read for var and std
  DType type = DType::kFloat;  // of feat and grad_feat
  const void* sum = nullptr;
  const void* mean = nullptr;
  const void* max = nullptr;
  const void* min = nullptr;
  const void* var = nullptr;
  const void* std = nullptr;
  DType grad_type = DType::kFloat;  // `type`, or float
  const int32_t* arg_max = nullptr;
  const int32_t* arg_min = nullptr;
  const float* kept_mean = nullptr;
  const float* kept_std = nullptr;
  int64_t num_nodes = 0;
  int64_t dim = 0;
  // On the CPU: the sums of the gradients of max and min, of the rows of feat, if they were made before. The kernel
  // then does not read max, min and their winners.
  const float* won = nullptr;
  void* grad_feat = nullptr;

  bool has_squares() const { return var || std; }
  bool has_sums() const { return sum || mean || has_squares(); }
};

// Any message operator, broadcast and reduction. arg: edge ids of the winners, of the topology's index type, for max
// and min.
struct SpmmArgs {
  Topology topology;
  Op op = Op::kCopyLhs;
  Reduce reduce = Reduce::kSum;
  Operand lhs, rhs;
  Broadcast broadcast;
  int64_t out_len = 0;
  void* out = nullptr;
  void* arg = nullptr;
  DType out_type = DType::kFloat;
};

// out[edge] = op(lhs, rhs)
struct SddmmArgs {
  Topology topology;
  Op op = Op::kAdd;
  Operand lhs, rhs;
  Broadcast broadcast;
  int64_t out_len = 0;
  const void* mean_indptr = nullptr;  // of the rows
  void* out = nullptr;
  DType out_type = DType::kFloat;
};

// out[e] = col[column of e] + row[row of e] + edge[e], rows of `dim` values. Added up in fp32 (fp64), rounded once.
struct SddmmAddArgs {
  Topology topology;
  const void* col = nullptr;
  int64_t col_rows = 0;
  const void* row = nullptr;
  const void* edge = nullptr;
  DType type = DType::kFloat;  // of the operands
  int64_t dim = 0;
  void* out = nullptr;
  DType out_type = DType::kFloat;  // `type`, or float
};

// Both gradients of a sum weighted by one scalar per head, in one pass over out-edges (rows are sources):
// grad_feat[row] = sum of weight[e] scale[col] grad[col] ; grad_weight[e, head] = scale[col] <feat[row], grad[col]>
struct MulBackwardArgs {
  Topology topology;
  const void* feat = nullptr;
  const void* grad = nullptr;
  int64_t grad_rows = 0;
  DType type = DType::kFloat;       // of feat and grad_feat
  DType grad_type = DType::kFloat;  // of grad: `type`, or float
  const void* weight = nullptr;
  DType weight_type = DType::kFloat;  // of weight and grad_weight: may mix with `type`
  const void* mean_indptr = nullptr;  // of the columns
  int64_t heads = 1;
  int64_t dim = 0;
  void* grad_feat = nullptr;
  void* grad_weight = nullptr;
};

// Gradients of any operator and broadcast. `grad` lives at the node that was reduced into (or at the edge for sddmm);
// elements whose `arg` (same shape) is not this edge contribute nothing. Each gradient that is wanted is summed into
// rows or written once per edge.
struct GradientOut {
  void* data = nullptr;  // null: not wanted
  DType type = DType::kFloat;
  bool by_edge = false;
};
struct BackwardArgs {
  Topology topology;
  Op op = Op::kAdd;
  Operand grad, lhs, rhs;
  Broadcast broadcast;
  int64_t message_len = 0;
  const void* mean_indptr = nullptr;  // of the nodes at which grad lives
  const void* arg = nullptr;
  GradientOut grad_lhs, grad_rhs;
};

// Softmax over the edges of each row, column by column; logits, out and grad are (num_edges, columns).
struct EdgeSoftmaxArgs {
  Topology topology;
  const void* logits = nullptr;  // forward: logits; backward: the forward's result
  const void* grad = nullptr;    // backward only
  void* out = nullptr;
  DType type = DType::kFloat;
  int64_t columns = 1;
};

// The value of a code is (code - zero_point) * scale: fp32, in which only the product is rounded as long as the zero
// points are integers.
struct Scales {
  ScalePer per = ScalePer::kTable;
  const float* scale = nullptr;
  const float* zero_point = nullptr;  // null: 0
};

// out[i] = table[ids[i]], as bytes or, of a table of codes, the values rounded to out_type.
struct GatherRowsArgs {
  const void* table = nullptr;
  bool table_on_host = false;  // page-locked memory, which the GPU reads in place
  int64_t table_rows = 0;
  int64_t table_stride = 0;  // bytes from a row to the next
  int64_t row_bytes = 0;
  const void* ids = nullptr;  // not trusted
  int64_t num_ids = 0;
  int64_t ids_stride = 1;  // entries from an id to the next
  bool is_int64 = false;
  void* out = nullptr;      // rows without gaps: of row_bytes, or a value for each of the codes
  int64_t num_threads = 0;  // that copy on the CPU; 0: PyTorch's
  Code code = Code::kNone;
  Scales scales;                   // of codes
  bool scales_on_host = false;     // as table_on_host
  DType out_type = DType::kFloat;  // of codes: half, bfloat16 or float
};

}  // namespace halfgnn
