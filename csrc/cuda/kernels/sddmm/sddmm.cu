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
    return len % count == 0 && are_aligned(count * size, args.operand[0].data, args.operand[1].data) &&
           are_aligned(count * out_size, args.out);
  });
}

// The rows that are gathered: those of the operands at the columns.
Gathered gathered_of(const SddmmArgs& args, int64_t row_bytes) {
  int64_t rows = 0;
  for (const Operand* operand : {&args.lhs, &args.rhs}) {
    if (operand->data != nullptr && operand->target == Target::kCol) rows += operand->rows;
  }
  return {rows, row_bytes, args.topology.num_edges};
}

}  // namespace

cudaError_t sddmm_elementwise(const SddmmArgs& args, const Launch& launch) {
  const bool has_lhs = reads_lhs(args.op), has_rhs = reads_rhs(args.op);
  const DType type = has_lhs ? args.lhs.type : args.rhs.type;
  const bool same_types = !has_lhs || !has_rhs || args.lhs.type == args.rhs.type;
  if (args.op == Op::kDot || args.mean_indptr != nullptr || !same_types || type == DType::kDouble ||
      (args.out_type != type && args.out_type != DType::kFloat)) {
    return cudaErrorInvalidValue;
  }
  const Rows rows = rows_of(args.topology);
  if (rows.num_edges == 0 || rows.num_rows == 0 || args.out_len == 0) return cudaSuccess;

  ElementwiseArgs kernel_args{};
  kernel_args.rows = rows;
  kernel_args.indices = indices_of(args.topology);
  kernel_args.edge_ids = edge_ids_of(args.topology);
  kernel_args.op = args.op;
  int count = 0;
  if (has_lhs) kernel_args.operand[count++] = {args.lhs.data, args.lhs.target};
  if (has_rhs) kernel_args.operand[count++] = {args.rhs.data, args.rhs.target};
  for (int k = 0; k < count; ++k) {
    kernel_args.reads_row = kernel_args.reads_row || kernel_args.operand[k].target == Target::kRow;
    kernel_args.reads_col = kernel_args.reads_col || kernel_args.operand[k].target == Target::kCol;
  }
  kernel_args.out = args.out;
  kernel_args.out_is_float = args.out_type == DType::kFloat;

  const int64_t size = size_of(type), row_bytes = args.out_len * size;
  if (row_bytes > INT32_MAX) return cudaErrorInvalidValue;
  const int vector = choose_vector(kernel_args, args.out_len, size);
  const int64_t row_vectors = args.out_len / vector;
  const Device device = current_device();
  const int64_t slice_vectors = slice_vectors_of(device, gathered_of(args, row_bytes), row_vectors, vector * size);
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
