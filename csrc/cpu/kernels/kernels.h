// The CPU kernels as the bindings see them: one table of functions per instruction set, chosen at run time
// (choose.h).
//
// A kernel works on the rows [row_begin, row_end) of a compressed adjacency, or on a range of nodes. It writes only
// what belongs to those rows, their edges or those nodes, and edge data is stored in the order of edge_ids: results do
// not depend on how rows are divided among threads. Computes in fp32 (fp64 for fp64 data), sums over many edges partly
// in fp64, and rounds each result once. Pointers are trusted and need no alignment but that of their elements. Rows
// without edges are allowed. Arguments are described in core/arguments.h, those of the attentions in
// attention/passes.h.
#pragma once

#include "../../core/arguments.h"
#include "../../core/code_sum.h"
#include "../../core/coo.h"
#include "../../core/gated_sum.h"
#include "../../core/head_logits.h"
#include "attention/passes.h"

namespace halfgnn {

// Each group of kernels is a file of its own name and is compiled by itself.
struct SpmmKernels {
  void (*sum)(const SpmmSumArgs&, int64_t row_begin, int64_t row_end);  // of shapes that has_sum_kernel() takes
  void (*general)(const SpmmArgs&, int64_t row_begin, int64_t row_end);
};
struct EdgeSumKernels {  // of rows that has_vector_kernel() takes
  void (*forward)(const EdgeSumArgs&, int64_t row_begin, int64_t row_end);
  void (*backward)(const EdgeSumBackwardArgs&, int64_t row_begin, int64_t row_end);
};
struct GatedSumKernels {
  void (*forward)(const GatedSumArgs&, int64_t row_begin, int64_t row_end);
  void (*backward)(const GatedSumBackwardArgs&, int64_t row_begin, int64_t row_end);
};
struct CodeSumKernels {
  void (*forward)(const CodeSumArgs&, int64_t row_begin, int64_t row_end);  // of rows of at least one code
};
struct CooSumKernels {
  void (*sum)(const CooSumArgs&, int64_t column_begin, int64_t column_end);
  void (*gather)(const CooGatherArgs&, int64_t edge_begin, int64_t edge_end);
  void (*dot)(const CooDotArgs&, int64_t edge_begin, int64_t edge_end);
  void (*relu_backward)(const CooReluBackwardArgs&, int64_t column_begin, int64_t column_end);
  void (*divide_rows)(const DivideRowsArgs&, int64_t row_begin, int64_t row_end);
};
struct CooSoftmaxKernels {
  void (*forward)(const CooSoftmaxArgs&);
  void (*backward)(const CooSoftmaxBackwardArgs&);
};
// A part of the columns of a gradient of maxima and minima, for which elements are added to the sources of their
// winners, kWinnerColumns at a time.
constexpr int64_t kWinnerColumns = 16;
constexpr uint32_t kNoSource = UINT32_MAX;
constexpr int64_t slices_of(int64_t columns) { return (columns + kWinnerColumns - 1) / kWinnerColumns; }
struct WinnerColumns {
  const CopyReduceBackwardArgs& args;  // with in_edges
  int64_t first, count;
  uint32_t* sources;  // of the winners of max and then of min: kWinnerColumns per slice and node
  void* out;          // rows of args.dim values of `type`
  DType type;

  int64_t slices() const { return slices_of(count); }
};
struct CopyReduceKernels {  // of shapes that has_reduce_kernel() takes
  void (*forward)(const CopyReduceArgs&, int64_t row_begin, int64_t row_end);
  // What the gradient reads of nodes: 2 * dim values per node, or dim if it is not of var or std.
  void (*records)(const CopyReduceBackwardArgs&, float* records, int64_t node_begin, int64_t node_end);
  void (*gradient)(const CopyReduceBackwardArgs&, const float* records, int64_t row_begin, int64_t row_end);
  // Looks up the sources of winners, of some nodes.
  void (*winners)(const WinnerColumns&, int64_t node_begin, int64_t node_end);
  // Writes the sums of one slice, of some sources. sums: room for one row more.
  void (*scatter)(const WinnerColumns&, int64_t slice, int64_t row_begin, int64_t row_end, double* sums);
};
struct SddmmKernels {
  // Plain dot of rows of types that may mix, of a shape that has_vector_kernel() takes.
  void (*dot)(const SddmmArgs&, int64_t row_begin, int64_t row_end);
  // No broadcasting, no scale, half or fp32 operands of one type, or one of each and an fp32 result; rows of at least
  // one value.
  void (*elementwise)(const SddmmArgs&, int64_t row_begin, int64_t row_end);
  void (*add)(const SddmmAddArgs&, int64_t row_begin, int64_t row_end);  // rows of at least one value
  void (*general)(const SddmmArgs&, int64_t row_begin, int64_t row_end);
};
struct BackwardKernels {
  void (*mul)(const MulBackwardArgs&, int64_t row_begin, int64_t row_end);  // of shapes that has_vector_kernel() takes
  void (*general)(const BackwardArgs&, int64_t row_begin, int64_t row_end);
};
struct EdgeSoftmaxKernels {
  void (*forward)(const EdgeSoftmaxArgs&, int64_t row_begin, int64_t row_end);
  void (*backward)(const EdgeSoftmaxArgs&, int64_t row_begin, int64_t row_end);
};
struct GatKernels {
  // out[i] of Acc for the values [begin, end) of `type`
  void (*widen)(DType type, const void* values, void* out, int64_t begin, int64_t end);
  void (*forward)(const GatPass&, int64_t row_begin, int64_t row_end);
  void (*nodes)(const GatPass&, int64_t node_begin, int64_t node_end);  // destinations: records, grad_attn_dst
  void (*backward)(const GatPass&, int64_t row_begin, int64_t row_end);
};
struct PairKernels {
  void (*forward)(const PairPass&, int64_t row_begin, int64_t row_end);
  void (*nodes)(const PairNodes&, int64_t node_begin, int64_t node_end);
  void (*backward)(const PairPass&, int64_t row_begin, int64_t row_end);
  // out[i] of `type` = sum over j < count of parts[j * n + i] of Acc, in fp64
  void (*add_parts)(const void* parts, int64_t count, int64_t n, DType type, void* out);
};

struct HeadLogitsKernels {
  void (*forward)(const HeadLogitsArgs&, int64_t row_begin, int64_t row_end);
  // part: that of these rows, (count, heads, dim); null if it is not wanted
  void (*backward)(const HeadLogitsBackwardArgs&, void* part, int64_t row_begin, int64_t row_end);
};

constexpr int64_t kMostLanes = 16;
struct GatherKernels {
  // The rows [begin, end) of out, of a table of codes. Ids are trusted here. Scales of columns have zero points, and
  // both are followed by kMostLanes more numbers.
  void (*dequantize)(const GatherRowsArgs&, int64_t begin, int64_t end);
};

struct KernelTable {
  const char* name;  // of the instruction set, as HALFGNN_CPU names it
  bool (*has_vector_kernel)(DType type, int64_t dim);
  bool (*has_sum_kernel)(DType type, int64_t heads, int64_t dim);
  bool (*has_reduce_kernel)(DType type, int64_t dim, int64_t num_edges);
  const SpmmKernels& spmm;
  const EdgeSumKernels& edge_sum;
  const GatedSumKernels& gated_sum;
  const CodeSumKernels& code_sum;
  const CopyReduceKernels& copy_reduce;
  const SddmmKernels& sddmm;
  const BackwardKernels& backward;
  const EdgeSoftmaxKernels& edge_softmax;
  const GatKernels& gat;
  const PairKernels& pair;
  const HeadLogitsKernels& head_logits;
  const GatherKernels& gather;
  const CooSumKernels& coo_sum;
  const CooSoftmaxKernels& coo_softmax;
};

}  // namespace halfgnn
