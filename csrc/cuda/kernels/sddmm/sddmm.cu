// The launchers of sddmm.h: operators without broadcasting, and any operator and broadcast.

#include "sddmm.h"

#include "../core/alignment.h"
#include "../core/vector.cuh"
#include "../general/term_ops.h"
#include "../plan/device.h"
#include "../plan/units.h"
#include "sddmm_elementwise.h"

namespace halfgnn::cuda {
namespace {

// The widest access that divides rows, and is one access of operands and of the result.
int choose_vector(const ElementwiseArgs& args, int64_t len, int64_t size) {
  const int64_t out_size = args.out_is_float ? 4 : size;
  return widest_vector(kMaxAccessBytes / out_size, [&](int64_t count) {
    return len % count == 0 &&
           are_aligned(count * size, args.operand[0].data, args.operand[1].data, args.operand[2].data) &&
           are_aligned(count * out_size, args.out);
  });
}

// Rows of `len` elements, all of one type. gathered_rows: those of operands at the columns.
struct ElementwiseProblem {
  Topology topology;
  Op op;
  ElementwiseOperand operand[kMaxElementwiseOperands];
  int64_t gathered_rows;
  DType type;
  int64_t len;
  void* out;
  DType out_type;
};

cudaError_t launch_elementwise(const ElementwiseProblem& problem, const Launch& launch) {
  const DType type = problem.type;
  if (type == DType::kDouble || (problem.out_type != type && problem.out_type != DType::kFloat)) {
    return cudaErrorInvalidValue;
  }
  const Rows rows = rows_of(problem.topology);
  if (rows.num_edges == 0 || rows.num_rows == 0 || problem.len == 0) return cudaSuccess;

  ElementwiseArgs kernel_args{};
  kernel_args.rows = rows;
  kernel_args.indices = indices_of(problem.topology);
  kernel_args.edge_ids = edge_ids_of(problem.topology);
  kernel_args.op = problem.op;
  for (int k = 0; k < kMaxElementwiseOperands && problem.operand[k].data != nullptr; ++k) {
    kernel_args.operand[k] = problem.operand[k];
    kernel_args.reads_row = kernel_args.reads_row || problem.operand[k].target == Target::kRow;
    kernel_args.reads_col = kernel_args.reads_col || problem.operand[k].target == Target::kCol;
  }
  kernel_args.out = problem.out;
  kernel_args.out_is_float = problem.out_type == DType::kFloat;

  const int64_t size = size_of(type), row_bytes = problem.len * size;
  if (row_bytes > INT32_MAX) return cudaErrorInvalidValue;
  const int vector = choose_vector(kernel_args, problem.len, size);
  const int64_t row_vectors = problem.len / vector;
  const Device device = current_device();
  const Gathered gathered{problem.gathered_rows, row_bytes, rows.num_edges};
  const int64_t slice_vectors = slice_vectors_of(device, gathered, row_vectors, vector * size);
  const int64_t edges_per_warp = elementwise_unit_edges(device, rows.num_edges, slice_vectors);
  const int64_t slice_blocks = ceil_div(rows.num_edges, edges_per_warp * kElementwiseWarps);
  kernel_args.row_bytes = static_cast<uint32_t>(row_bytes);
  kernel_args.row_vectors = static_cast<int32_t>(row_vectors);
  kernel_args.slice_vectors = static_cast<int32_t>(slice_vectors);
  kernel_args.edges_per_warp = static_cast<int32_t>(edges_per_warp);
  kernel_args.slice_blocks = static_cast<uint32_t>(slice_blocks);
  const int64_t blocks = slice_blocks * ceil_div(row_vectors, slice_vectors);
  return with_type(type, [&](auto t) {
    return sddmm_elementwise_of<TypeOf<decltype(t)>>(kernel_args, vector, blocks, launch.stream);
  });
}

}  // namespace

cudaError_t sddmm_elementwise(const SddmmArgs& args, const Launch& launch) {
  const bool has_lhs = reads_lhs(args.op), has_rhs = reads_rhs(args.op);
  const DType type = has_lhs ? args.lhs.type : args.rhs.type;
  const bool same_types = !has_lhs || !has_rhs || args.lhs.type == args.rhs.type;
  if (args.op == Op::kDot || args.mean_indptr != nullptr || !same_types) return cudaErrorInvalidValue;
  ElementwiseProblem problem{args.topology, args.op, {}, 0, type, args.out_len, args.out, args.out_type};
  int count = 0;
  if (has_lhs) problem.operand[count++] = {args.lhs.data, args.lhs.target};
  if (has_rhs) problem.operand[count++] = {args.rhs.data, args.rhs.target};
  for (const Operand* operand : {&args.lhs, &args.rhs}) {
    if (operand->data != nullptr && operand->target == Target::kCol) problem.gathered_rows += operand->rows;
  }
  return launch_elementwise(problem, launch);
}

cudaError_t sddmm_add(const SddmmAddArgs& args, const Launch& launch) {
  const ElementwiseProblem problem{
      args.topology, Op::kAdd,     {{args.col, Target::kCol}, {args.row, Target::kRow}, {args.edge, Target::kEdge}},
      args.col_rows, args.type,    args.dim,
      args.out,      args.out_type};
  return launch_elementwise(problem, launch);
}

cudaError_t sddmm(const SddmmArgs& args, const Launch& launch) {
  Term term;
  term.scale = inverse_degrees_of(args.mean_indptr, args.topology);
  term.scale_target = Target::kRow;
  term.scale_result = true;
  const bool fits_out = fits_term_vector(args.out, size_of(args.out_type));
  if (!plan_forward(args.op, args.lhs, args.rhs, args.broadcast, fits_out, term)) return cudaErrorInvalidValue;
  return terms_by_edge(args.topology, term, args.out, args.out_type, launch);
}

}  // namespace halfgnn::cuda
