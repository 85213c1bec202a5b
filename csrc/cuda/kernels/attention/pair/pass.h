// One pass of GATv2 or dot attention over an adjacency: what the launcher (pair_attention.cu) tells the kernel
// (pair/lanes/kernel.cuh), which the build instantiates for each element type.
//
// A pass takes a row of the adjacency at a time. The row's own key is the query of a destination or the key of a
// source; the edge brings a row from its other end to it, the key of the column. The weight of an edge multiplies a row
// of values. In the backward pass, "value" also names a row of the gradient of the result: the derivative by a weight
// is the dot of the two.
#pragma once

#include "../../core/heads.cuh"
#include "../../core/row_units.cuh"
#include "../shared/attention.cuh"
#include "pair_attention.h"

namespace halfgnn::cuda {

enum class PairPass {
  kForward,       // over CSC: results
  kDestinations,  // over CSC: gradients of destinations' keys
  kSources,       // over CSR: gradients of sources' keys and values
  // The same with records of edges (plan/edge_records.h), which the one writes and the other reads: of GATv2, and where
  // edges add to logits or values.
  kRecordingDestinations,
  kRecordedSources
};

// Forward: l_e - lse is the logarithm of the weight. Delta: the dot of the result and its gradient.
struct alignas(8) DestinationRecord {
  float lse;
  float delta;
};

// Of every edge, at its id: see plan/edge_records.h.
struct EdgeRecords {
  char* data;  // null: there are none
  uint32_t bytes;
  uint32_t signs_at;
};

// Columns of an edge that a lane takes; rows of columns have whole multiples.
constexpr int kPairColumns = 4;
// Columns that GATv2 takes: one product on tensor cores.
constexpr int kMaxProjected = 16;

// Columns that edges add, as features f_e of each edge that all heads share: see EdgeTerms. In GATv2 they have a
// weight, and nothing else that follows it. Of dot attention, rows are (destinations, heads, count).
struct PairColumnArgs {
  const void* feat;    // (edges, count); null: there are none
  const void* weight;  // (heads, dim, count)
  const float* query;  // what they meet in logits; null: they are in values alone
  const float* grad;   // backward: what they meet in the derivative by a weight; null: they are in keys alone
  float* sums;  // weighted sums of them: forward, EdgeTerms::out; backward, the gradient of `query`. May be null.
  float* partial_sums;
  float* wide;  // what PairArgs::out or grad_key has, in fp32 and in place of that. May be null.
  uint32_t count;
};

// What edges add: EdgeTerms in csrc/core/attention.h. Null: the term is absent.
struct PairEdgeArgs {
  const void* bias;
  const void* key;    // rows, added to those of columns: of GATv2 inside the LeakyReLU alone
  const void* value;  // rows, added to those of columns; may be `key`
  // Of the pass to destinations.
  void* grad_bias;
  void* grad_key;
  void* grad_value;  // null: not wanted, or if key == value, grad_key has the sum of both
  bool bias_is_float;
  PairColumnArgs columns;  // without rows

  __host__ bool has_rows() const { return key != nullptr || value != nullptr; }
  __host__ bool has_columns() const { return columns.feat != nullptr; }
  __host__ bool any() const { return bias != nullptr || has_rows() || has_columns(); }
};

struct PairArgs {
  RowUnits units;
  Ids columns;
  Ids edge_ids;
  HeadLayout layout;
  uint32_t row_elements;  // heads * dim
  uint32_t blocks_per_slice;
  DropoutMask dropout;

  const void* own_key;    // of the row
  const void* own_value;  // of the row; backward only
  const void* key;        // of the columns
  const void* value;      // of the columns
  PairLogit logit;
  float* key_logits;  // of GATv2, (columns, heads): linear * <attn, key>; null: logits come in one part

  Precise out;                 // (destinations, heads, dim)
  float* lse;                  // (destinations, heads)
  DestinationRecord* records;  // backward: (destinations, heads), from the pass to destinations to that to sources
  EdgeRecords edge_records;    // backward

  // Sums of gradients, and of those that belong to pieces of long rows: a row for each slot.
  void* grad_key;
  void* grad_value;
  float* partial_key;
  float* partial_value;
  AttentionPartials partials;  // forward

  float* products;  // of GATv2: see pair/lanes/products.cuh
  float* dots;      // with tiles, of an edge and head: the logit; backward: what its rows are multiplied by

  PairEdgeArgs edge;  // of kernels of terms of edges
};

// How rows are read. Chosen from sizes and alignment alone, for all passes of a call.
struct PairShape {
  int64_t heads, dim;
  DType type;
  int vector;  // elements of an access: 16 bytes, or one
  int repeat;  // accesses per lane and row
  bool tiled;  // heads are too wide for registers

  int64_t row_elements() const { return heads * dim; }
  int64_t covered() const { return int64_t{kWarpSize} * repeat * vector; }  // elements of a head, by a warp
  int64_t lane_bytes() const { return vector * repeat * size_of(type); }
};

// Rows that a pass gathers for an edge: the column's key, and its value if that is another row.
constexpr HALFGNN_HOST_DEVICE bool keys_are_values(PairScore score, PairPass pass) {
  return score == PairScore::kLeaky && pass != PairPass::kSources;
}
// Whether logits of destinations may come in two parts: of GATv2 in half precision, one vector a lane.
constexpr bool splits_logits(PairScore score, int64_t element_bytes, int repeat) {
  return score == PairScore::kLeaky && element_bytes == 2 && repeat == 1;
}
constexpr int rows_per_edge(PairScore score, PairPass pass) { return keys_are_values(score, pass) ? 1 : 2; }

// Edges of a group in flight, by the bytes of a row that a lane takes and the accesses that they are. Several accesses,
// and terms of edges, take the registers of more.
constexpr bool is_wide_pair(int64_t lane_bytes) { return lane_bytes > 2 * kMaxAccessBytes; }
constexpr int pair_unroll(int64_t lane_bytes, int accesses, int rows_per_edge, bool has_terms) {
  if (is_wide_pair(lane_bytes)) return 2 / rows_per_edge;
  return accesses > 1 || has_terms ? 4 / rows_per_edge : 4;
}

// Warps of a block. Each leaves its place to another as soon as its rows are done, unless the block shares something.
constexpr int pair_warps(bool shares_memory) { return shares_memory ? 4 : 1; }

// ---- What comes of the records of passes to destinations, where edges add columns.

// Of GATv2: see projected_gradients.cuh.
struct ProjectionGradientArgs {
  EdgeRecords records;
  int64_t num_edges;
  int32_t heads, vectors;  // of a head
  int32_t columns;
  float slope;
  const void* feat;     // (edges, columns)
  const void* attn;     // (heads, dim)
  const void* weight;   // (heads, dim, columns)
  void* grad_feat;      // null: not wanted
  void* grad_weight;    // null: not wanted
  float* partial_sums;  // (num_partials, heads, dim, columns)
  int64_t num_partials;
  float* sums;      // (heads, dim, columns): of all partial sums
  float* products;  // (heads, dim): what columns add to the gradient of attn
};
template <typename T>
cudaError_t projected_gradients_of(const ProjectionGradientArgs& args, const Launch& launch);

// What comes of the records of a pass to destinations of dot attention: the gradient of PairColumnArgs::feat.
template <typename T>
cudaError_t column_gradients_of(const PairArgs& pass, void* grad_feat, const Launch& launch);

// ---- What comes after the passes of a backward.

// sums[column] = the sum of all rows of products, each of `len` elements, added in fp64 in a fixed order.
constexpr int64_t kProductShares = 64;
struct ProductSumArgs {
  const float* products;
  int64_t rows, len;
  void* sums;
  DType type;
  double* partial = nullptr;  // kProductShares rows, by which many rows are shared among more blocks
};
cudaError_t sum_products(const ProductSumArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
