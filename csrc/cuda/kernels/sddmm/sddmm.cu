// The launchers of sddmm.h: operators without broadcasting, and any operator and broadcast.

#include "sddmm.h"

#include "../core/types.cuh"
#include "../general/term_ops.h"
#include "../plan/device.h"
#include "sddmm_elementwise.h"

namespace halfgnn::cuda {
namespace {

// Launches of more warps than this give each more to do, so that fewer search for their first row.
constexpr int64_t kManyWarps = 1 << 14;
constexpr int64_t kMaxEdgesPerWarp = 8 * kTileEdges;
constexpr int64_t kMaxPairsPerWarp = 1 << 12;

// Gathered rows of more than the L2 cache are swept in slices that fit, of at least one access of device memory. The
// rest of the cache is for what streams past.
constexpr double kUsableCache = 0.6;
constexpr int64_t kMinSliceBytes = 128;
constexpr int64_t kMaxSliceVectors = 1 << 20;

struct Tiling {
  int vector;  // elements an access
  int64_t row_vectors, slice_vectors;
  int64_t edges_per_warp;
};

bool is_aligned(const ElementwiseArgs& args, int64_t bytes, int64_t out_bytes) {
  const auto address = [](const void* data) { return reinterpret_cast<uintptr_t>(data); };
  return (address(args.operand[0].data) | address(args.operand[1].data)) % bytes == 0 &&
         address(args.out) % out_bytes == 0;
}

// The widest access that divides rows, and is one access of operands and of the result.
int choose_vector(const ElementwiseArgs& args, int64_t len, int64_t size) {
  const int64_t out_size = args.out_is_float ? 4 : size;
  int vector = static_cast<int>(16 / out_size);
  while (vector > 1 && (len % vector != 0 || !is_aligned(args, vector * size, vector * out_size))) vector /= 2;
  return vector;
}

int64_t choose_slice(const SddmmArgs& args, int64_t vector_bytes, int64_t row_vectors) {
  int64_t slice = row_vectors < kMaxSliceVectors ? row_vectors : kMaxSliceVectors;
  int64_t gathered_rows = 0;
  for (const Operand* operand : {&args.lhs, &args.rhs}) {
    if (operand->data != nullptr && operand->target == Target::kCol) gathered_rows += operand->rows;
  }
  // Few edges a row: it is not read again.
  if (gathered_rows == 0 || args.topology.num_edges < 2 * gathered_rows) return slice;
  const auto cache = static_cast<int64_t>(kUsableCache * static_cast<double>(l2_cache_bytes()));
  const int64_t min_slice = ceil_div(kMinSliceBytes, vector_bytes);
  if (gathered_rows * slice * vector_bytes <= cache || gathered_rows * min_slice * vector_bytes > cache) return slice;
  while (slice > min_slice && gathered_rows * slice * vector_bytes > cache) slice = ceil_div(slice, 2);
  // A whole number of the smallest slices.
  slice = ceil_div(slice, min_slice) * min_slice;
  return slice < row_vectors ? slice : row_vectors;
}

int64_t choose_edges_per_warp(int64_t num_edges, int64_t slice_vectors) {
  int64_t edges = kWarpSize;
  while (edges < kMaxEdgesPerWarp && num_edges / edges > kManyWarps && edges * slice_vectors < kMaxPairsPerWarp) {
    edges *= 2;
  }
  return edges;
}

}  // namespace

cudaError_t sddmm_elementwise(const SddmmArgs& args, const Launch& launch) {
  const bool has_lhs = reads_lhs(args.op), has_rhs = reads_rhs(args.op);
  const DType type = has_lhs ? args.lhs.type : args.rhs.type;
  const bool same_types = !has_lhs || !has_rhs || args.lhs.type == args.rhs.type;
  if (args.op == Op::kDot || args.row_scale != nullptr || !same_types || type == DType::kDouble ||
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
  const int64_t slice_vectors = choose_slice(args, vector * size, row_vectors);
  const int64_t edges_per_warp = choose_edges_per_warp(rows.num_edges, slice_vectors);
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
  term.scale = static_cast<const float*>(args.row_scale);
  term.scale_target = Target::kRow;
  term.scale_result = true;
  const bool fits_out = fits_term_vector(args.out, size_of(args.out_type));
  if (!plan_forward(args.op, args.lhs, args.rhs, args.broadcast, fits_out, term)) return cudaErrorInvalidValue;
  return terms_by_edge(args.topology, term, args.out, args.out_type, launch);
}

}  // namespace halfgnn::cuda
