// The general path: any operator, its gradients, any broadcast, types known at run time. Everything is one form,
//
//     result[j] = sum over s of term(edge, j, s),
//
// summed or reduced over the edges of each row, or written once per edge. A term combines up to three elements: those
// of lhs and rhs in a forward; those of the upstream gradient and of what its formula reads in a backward. j counts the
// elements of the result (in a backward: of the operand whose gradient is wanted), s those that broadcasting or a dot
// sums over.
#pragma once

#include "../core/alignment.h"
#include "../core/rows.cuh"

namespace halfgnn::cuda {

enum class TermOp : int8_t {
  kFirst,     // a
  kAdd,       // a + b
  kSub,       // a - b
  kMul,       // a * b
  kDiv,       // a / b
  kReluAdd,   // relu(a + b)
  kDivisor,   // -a * (b / c) / c: the gradient a of b / c, for c
  kReluSlope  // a if b + c > 0, otherwise 0: the gradient a of relu(b + c)
};

constexpr int kMaxTermInputs = 3;
// Elements per access if shapes, strides and alignment allow it; otherwise one.
constexpr int kTermVector = 4;

struct TermInput {
  const void* data = nullptr;
  uint32_t row_bytes = 0;
  DType type = DType::kFloat;
  Target target = Target::kEdge;
  bool splat = false;  // one element serves a whole vector
};

struct TermDim {
  uint32_t size;
  uint32_t stride[kMaxTermInputs];  // bytes
};

struct Term {
  TermInput input[kMaxTermInputs];
  TermOp op = TermOp::kFirst;
  int num_inputs = 0;
  // Which ids of an edge are read. The edge's own is also where an edge-wise result goes.
  bool reads_row = false, reads_col = false, reads_edge = false;

  // Every edge's factor: `scale` (none: 1) at this target of the edge, negated if `negate`. It multiplies the first
  // element, or the result.
  InverseDegrees scale{};
  Target scale_target = Target::kRow;
  bool negate = false;
  bool scale_result = false;
  // Winners of a maximum or minimum, shaped like the first input. Elements whose maximum another edge won are zero.
  // Null: all count.
  Ids winner{};
  uint32_t winner_row_bytes = 0;
  int winner_shift = 0;  // from the offset of an element to that of its winner, both in bytes: to the left

  // Dimensions of j, innermost first, then those of s.
  TermDim dim[kMaxBroadcastDims];
  int num_result_dims = 0, num_sum_dims = 0;
  uint32_t num_results = 0;
  uint32_t num_sums = 1;

  // Division of labour. A vector runs along j or, if elements that are summed lie together, along s. Of a warp's
  // lanes, the low bits of the number choose vectors of j, the next ones those of s, the rest edges.
  bool vectors = false;
  bool vectors_in_sum = false;
  int log2_result_lanes = 0, log2_sum_lanes = 0;
  uint32_t slices = 1;  // of the results, a warp each

  __host__ __device__ bool has_factor() const { return scale.exists() || negate; }
};

// How an operand moves along the dimensions of the broadcast: &BroadcastDim::lhs and the like.
using TermStride = int64_t BroadcastDim::*;
struct TermSource {
  const Operand* operand;
  TermStride stride;
};

// Fills in all of `term` that follows from shapes; op, factor and winners must be there. `result` is the stride along
// which results lie; `fits_out` says that they can be stored in vectors if their rows can be cut into vectors.
// False for sizes beyond what kernels take.
bool plan_term(const Broadcast& broadcast, TermStride result, const TermSource* sources, int num_sources, bool fits_out,
               Term& term);
// Whether a term vector of elements of so many bytes can be stored at `out`.
inline bool fits_term_vector(const void* out, int64_t element_bytes) {
  const int64_t bytes = kTermVector * element_bytes;
  return are_aligned(bytes < 16 ? bytes : 16, out);
}

// out[edge, j] for every edge. `out` holds num_results elements per edge.
struct EdgeTermsArgs {
  Term term;
  Rows rows;
  Ids indices, edge_ids;
  void* out;
  DType out_type;
  uint32_t slice_blocks;
  int32_t steps;  // 32 edges each, that a warp walks
};
cudaError_t terms_by_edge(const Topology& topology, const Term& term, void* out, DType out_type, const Launch& launch);

// out[row, j] = the sum over the row's edges, divided by their number if divide_by_degree is set.
struct RowTermsArgs {
  Term term;
  Rows rows;
  Ids indices, edge_ids;
  bool divide_by_degree;
  void* out;
  DType out_type;
  float* partial;
  uint32_t slice_blocks;
};
cudaError_t terms_by_row(const Topology& topology, const Term& term, bool divide_by_degree, void* out, DType out_type,
                         const Launch& launch);
inline size_t terms_by_row_workspace(const Topology& topology, int64_t num_results) {
  return static_cast<size_t>(rows_of(topology).num_slots * num_results) * sizeof(float);
}

}  // namespace halfgnn::cuda
