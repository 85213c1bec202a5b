// The launchers of copy_reduce.h.

#include <algorithm>
#include <cmath>

#include "../core/combine.h"
#include "../plan/device.h"
#include "../plan/slices.h"
#include "copy_reduce_launch.h"
#include "scatter_winners.h"

namespace halfgnn::cuda {
namespace {

int64_t id_bytes(const Topology& topology) { return topology.is_int64 ? 8 : 4; }

bool is_valid(DType type, DType other, int64_t dim, const Topology& topology) {
  return has_copy_reduce(type, dim > 0 ? dim : 1, topology.num_edges) && (other == type || other == DType::kFloat);
}

}  // namespace

bool has_copy_reduce(DType type, int64_t dim, int64_t num_edges) {
  return type != DType::kDouble && dim > 0 && fits_gather(dim) && num_edges <= INT32_MAX;
}

size_t copy_reduce_workspace(const CopyReduceArgs& args) {
  return PartialReductions::bytes(rows_of(args.topology).num_slots * args.dim);
}

cudaError_t copy_reduce(const CopyReduceArgs& args, const Launch& launch) {
  if (!is_valid(args.type, args.out_type, args.dim, args.topology) || args.feat_by_edge || args.arg_is_int64) {
    return cudaErrorInvalidValue;
  }
  if (args.topology.num_rows == 0 || args.dim == 0) return cudaSuccess;

  const Rows rows = rows_of(args.topology);
  CopyReduceKernelArgs kernel_args{};
  kernel_args.out = {edge_ids_of(args.topology),
                     args.out_type,
                     args.sum,
                     args.mean,
                     args.max,
                     args.min,
                     args.var,
                     args.std,
                     static_cast<int32_t*>(args.arg_max),
                     static_cast<int32_t*>(args.arg_min),
                     args.kept_mean,
                     args.kept_std,
                     args.eps};
  kernel_args.partial = PartialReductions::in(launch.workspace, rows.num_slots * args.dim);
  kernel_args.has_squares = args.var || args.std || args.kept_std;
  kernel_args.has_sums = args.sum || args.mean || args.kept_mean || kernel_args.has_squares;
  kernel_args.has_extrema = args.max || args.min;
  const GatherShape shape{
      args.feat, args.feat_rows, args.dim * size_of(args.type), false, id_bytes(args.topology), kCopyReduceWork, 0};
  const cudaError_t status = with_type(
      args.type, [&](auto t) { return copy_reduce_of<TypeOf<decltype(t)>>(args, kernel_args, shape, launch); });
  if (status != cudaSuccess) return status;
  return combine_reductions(
      {rows, kernel_args.partial, args.dim, kernel_args.has_sums, kernel_args.has_extrema, kernel_args.out}, launch);
}

// ---- Gradient.

namespace {

// Edges that win in a larger share of their columns are read whole.
constexpr double kMostMarked = 0.6;

size_t aligned_bytes(size_t bytes) { return (bytes + kMaxAccessBytes - 1) / kMaxAccessBytes * kMaxAccessBytes; }

int64_t record_len(const CopyReduceBackwardArgs& args) {
  return args.has_sums() ? args.dim * (args.has_squares() ? 2 : 1) : 0;
}
size_t record_bytes(const CopyReduceBackwardArgs& args) {
  return aligned_bytes(static_cast<size_t>(args.num_nodes * record_len(args)) * sizeof(float));
}

size_t slot_bytes(const CopyReduceBackwardArgs& args) {
  return aligned_bytes(partial_bytes(rows_of(args.topology), args.dim));
}

// The share of an edge's marks that are set: of a row of d edges each wins a column with probability 1 / d.
double share_won(const CopyReduceBackwardArgs& args, int32_t columns) {
  const int extremes = (args.max != nullptr) + (args.min != nullptr);
  const double degree = static_cast<double>(args.topology.num_edges) / static_cast<double>(args.num_nodes);
  return std::min(1., extremes * columns / std::max(1., degree));
}

// Columns per mark; 0: marks save too little.
int32_t columns_per_mark(const CopyReduceBackwardArgs& args) {
  if (args.topology.num_edges == 0 || (args.max == nullptr && args.min == nullptr)) return 0;
  constexpr int64_t kAccess = kMaxAccessBytes / static_cast<int64_t>(sizeof(float));
  const auto columns =
      static_cast<int32_t>(ceil_div(ceil_div(args.dim, int64_t{WinnerMarks::kBits}), kAccess) * kAccess);
  return share_won(args, columns) <= kMostMarked ? columns : 0;
}

// What an edge reads: its node's record, and the gradients and winners of both extremes, or of marked columns; and
// beside these, ids and marks.
struct EdgeBytes {
  int64_t row, streamed;
};
EdgeBytes edge_bytes(const CopyReduceBackwardArgs& args, int32_t columns) {
  const int64_t of_extreme = args.dim * (size_of(args.grad_type) + static_cast<int64_t>(sizeof(int32_t)));
  int64_t of_extremes = ((args.max != nullptr) + (args.min != nullptr)) * of_extreme, ids = ids_bytes(args.topology);
  if (columns > 0) {
    const double marked = share_won(args, columns) * static_cast<double>(of_extremes / args.dim);
    of_extremes = std::max(int64_t{1}, std::lround(marked)) * args.dim;
    ids += scattered_bytes(current_device(), args.topology.num_edges, sizeof(uint8_t));
  }
  const int64_t row = record_len(args) * static_cast<int64_t>(sizeof(float)) + of_extremes;
  return {row == 0 ? of_extreme : row, ids};  // without nodes there are no gradients
}

// Whether, and how, elements are added to sources in place of all that.
WinnersWorkspace winners_workspace(const CopyReduceBackwardArgs& args) {
  if (args.in_edges.indices == nullptr || args.has_sums() || (args.max == nullptr && args.min == nullptr) ||
      args.type != DType::kHalf || args.grad_type != DType::kHalf || args.num_nodes == 0) {
    return {};
  }
  const EdgeBytes gathered = edge_bytes(args, columns_per_mark(args));
  const WinnersProblem problem{args.topology.num_rows,
                               args.num_nodes,
                               args.topology.num_edges,
                               args.dim,
                               (args.max != nullptr) + (args.min != nullptr),
                               id_bytes(args.topology),
                               args.in_edges.edge_ids != nullptr,
                               gathered.row,
                               gathered.streamed};
  const Device device = current_device();
  const WinnersPlanner planner(device, problem);
  const int64_t columns = planner.plan();
  return {columns, planner.workspace_bytes(columns), planner.flag_bytes(columns)};
}

}  // namespace

size_t copy_reduce_backward_workspace(const CopyReduceBackwardArgs& args) {
  if (const WinnersWorkspace winners = winners_workspace(args); winners.columns > 0) {
    return static_cast<size_t>(winners.bytes);
  }
  const int64_t marks = columns_per_mark(args) > 0 ? args.topology.num_edges : 0;
  return record_bytes(args) + slot_bytes(args) + aligned_bytes(static_cast<size_t>(marks));
}

cudaError_t copy_reduce_backward(const CopyReduceBackwardArgs& args, const Launch& launch) {
  if (!is_valid(args.type, args.type, args.dim, args.topology) ||
      !is_valid(args.type, args.grad_type, args.dim, args.topology)) {
    return cudaErrorInvalidValue;
  }
  if (args.topology.num_rows == 0 || args.dim == 0) return cudaSuccess;

  if (const WinnersWorkspace winners = winners_workspace(args); winners.columns > 0) {
    return scatter_winners(args, winners, launch);
  }
  auto* records = static_cast<float*>(launch.workspace);
  if (const cudaError_t status = reduce_records(args, records, launch); status != cudaSuccess) return status;

  CopyReduceBackwardKernelArgs kernel_args{};
  kernel_args.edge_ids = edge_ids_of(args.topology);
  kernel_args.level = args.has_sums() ? records : nullptr;
  kernel_args.slope = args.has_squares() ? records + args.dim : nullptr;
  kernel_args.max = args.max;
  kernel_args.min = args.min;
  kernel_args.arg_max = args.arg_max;
  kernel_args.arg_min = args.arg_min;
  kernel_args.record_bytes = static_cast<uint32_t>(record_len(args) * sizeof(float));
  kernel_args.grad_bytes = static_cast<uint32_t>(args.dim * size_of(args.grad_type));
  kernel_args.arg_bytes = static_cast<uint32_t>(args.dim * sizeof(int32_t));
  kernel_args.feat = args.has_squares() ? args.feat : nullptr;
  kernel_args.type = args.type;
  kernel_args.grad_feat = args.grad_feat;
  auto* partial = static_cast<char*>(launch.workspace) + record_bytes(args);
  kernel_args.partial = reinterpret_cast<float*>(partial);
  const int32_t columns = columns_per_mark(args);
  if (columns > 0) {
    kernel_args.marks = {reinterpret_cast<uint8_t*>(partial + slot_bytes(args)), columns};
    if (const cudaError_t status = mark_winners(args, kernel_args.marks, launch); status != cudaSuccess) return status;
  }
  const EdgeBytes read = edge_bytes(args, columns);
  const GatherShape shape{nullptr, args.num_nodes, read.row, false, read.streamed, kCopyReduceBackwardWork, 0};
  const cudaError_t status = with_type(args.grad_type, [&](auto t) {
    return copy_reduce_backward_of<TypeOf<decltype(t)>>(args, kernel_args, shape, launch);
  });
  if (status != cudaSuccess) return status;
  return combine({rows_of(args.topology), kernel_args.partial, args.dim, 1.f, false, args.grad_feat, args.type},
                 launch);
}

}  // namespace halfgnn::cuda
