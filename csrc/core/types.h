// The words that every layer shares: element types, operators, reductions, targets. Torch-free.
#pragma once

#include <cstdint>

namespace halfgnn {

enum class DType : int8_t { kHalf, kBFloat16, kFloat, kDouble };
enum class Op : int8_t { kAdd, kSub, kMul, kDiv, kReluAdd, kCopyLhs, kCopyRhs, kDot };
enum class Reduce : int8_t { kSum, kMean, kMax, kMin };
enum class Side : int8_t { kLhs, kRhs };
// Numbers of 8 bits, of features that are stored: integers, and floating-point numbers as OCP and PyTorch define them.
enum class Code : int8_t { kNone, kUInt8, kInt8, kFloat8E4M3, kFloat8E5M2 };
// What has a scale of its own.
enum class ScalePer : int8_t { kTable, kRow, kColumn };

// Where an operand of an edge lives, seen from the compressed adjacency that is walked: at the edge's row (destination
// in CSC, source in CSR), at its column, or at the edge itself.
enum class Target : int8_t { kRow, kCol, kEdge };

constexpr int64_t size_of(DType type) { return type == DType::kDouble ? 8 : type == DType::kFloat ? 4 : 2; }
// Whether two operands of these types may come together: of one type, or a half type and fp32.
constexpr bool may_mix(DType a, DType b) {
  return a == b || (a == DType::kFloat && size_of(b) == 2) || (size_of(a) == 2 && b == DType::kFloat);
}
constexpr bool reads_lhs(Op op) { return op != Op::kCopyRhs; }
constexpr bool reads_rhs(Op op) { return op != Op::kCopyLhs; }
// Whether an operand's gradient is the message's, or its negative.
constexpr bool copies_gradient(Op op) {
  return op == Op::kAdd || op == Op::kSub || op == Op::kCopyLhs || op == Op::kCopyRhs;
}
constexpr bool is_copy(Op op) { return op == Op::kCopyLhs || op == Op::kCopyRhs; }
constexpr bool is_argument_reduce(Reduce reduce) { return reduce == Reduce::kMax || reduce == Reduce::kMin; }

// A compressed adjacency (CSC or CSR). indptr, indices and edge_ids are int32 or int64 arrays by `is_int64`; edge_ids
// may be null (edge data is stored in this order). indices may be null if only edge data is read.
struct Topology {
  const void* indptr = nullptr;
  const void* indices = nullptr;
  const void* edge_ids = nullptr;
  int64_t num_rows = 0;
  int64_t num_edges = 0;
  bool is_int64 = false;
  // The caller says that no row has 512 edges or more. That saves launches on CUDA; the CPU does not read it. If it is
  // wrong, results are right and come late. If it is right, only sums over all rows (the gradient of GATv2's attn)
  // depend on it, in their last bits.
  bool short_rows = false;
  // The order in which sums and maxima on CUDA walk the rows, of `schedule_length` entries (csrc/cuda/kernels/core/
  // scheduled_walk.cuh); null: as they are stored. It does not change results. The CPU does not read it.
  const int32_t* schedule = nullptr;
  int64_t schedule_length = 0;
};

// A dense operand: `len` contiguous elements per row, one row per node or edge.
struct Operand {
  const void* data = nullptr;
  DType type = DType::kFloat;
  int64_t len = 0;
  int64_t rows = 0;
  Target target = Target::kEdge;
};

// How the trailing shapes of lhs and rhs broadcast, where dimensions that all operands traverse alike are merged
// into one. Message element (o, i), o < outer, i < inner, reads lhs[lhs_offset[o] + i * lhs_step], and rhs by its own,
// and belongs to output element out_offset[o] + i * out_step. Steps are 0 or 1; out_step is 0 only for dot, whose inner
// dimension is summed. `dims` says the same in closed form, innermost first, for back ends that read no host table:
// along dimension d an operand moves by its stride, 0 where it is broadcast or, for out, summed.
constexpr int kMaxBroadcastDims = 8;
struct BroadcastDim {
  int64_t size = 1, lhs = 0, rhs = 0, out = 0;
};
struct Broadcast {
  int64_t outer = 0;
  int64_t inner = 0;
  const int64_t* lhs_offset = nullptr;
  const int64_t* rhs_offset = nullptr;
  const int64_t* out_offset = nullptr;
  int lhs_step = 0;
  int rhs_step = 0;
  int out_step = 0;
  int num_dims = 0;  // those past kMaxBroadcastDims are missing from dims
  BroadcastDim dims[kMaxBroadcastDims] = {};
};

}  // namespace halfgnn
