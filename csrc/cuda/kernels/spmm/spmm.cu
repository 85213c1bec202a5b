// The launchers of spmm.h.

#include "spmm.h"

#include "../core/combine.h"
#include "../general/spmm_general.h"
#include "../plan/device.h"
#include "../plan/lanes.h"
#include "spmm_launch.h"

namespace halfgnn::cuda {

GatherPlan plan_gather(const Topology& topology, const GatherShape& shape, int vector_bytes, int repeat, int unroll) {
  const Gathered gathered{shape.feat_rows, shape.row_bytes, topology.num_edges, shape.by_edge};
  const LanePlan lanes = plan_lanes(current_device(), {gathered, topology.num_rows, shape.stream_bytes, vector_bytes,
                                                       repeat, unroll, shape.work, shape.once_bytes, shape.reordering});
  GatherPlan plan{};
  plan.reorders = lanes.reorders;
  Gather& gather = plan.gather;
  gather.units = team_units_of(topology, lanes.layout, lanes.slices);
  gather.feat = shape.feat;
  gather.num_vectors = static_cast<int32_t>(shape.row_bytes / vector_bytes);
  gather.row_bytes = static_cast<uint32_t>(shape.row_bytes);
  const RowUnits& units = gather.units.row_units;
  const int64_t row_units = units.num_units - units.rows.num_slots;
  plan.threads = topology.num_edges >= kLongUnitEdges * row_units ? kLongUnitThreads : kGatherThreads;
  const int64_t unit_blocks = ceil_div(units.num_units, plan.threads / kWarpSize);
  gather.unit_blocks = static_cast<uint32_t>(unit_blocks);  // more are refused by launch()
  plan.blocks = lanes.slices * unit_blocks;
  return plan;
}

// ---- The pieces of long rows.

size_t counter_bytes(const Rows& rows, int64_t row_bytes) {
  return static_cast<size_t>(rows.num_slots * ceil_div(row_bytes, kMinSliceBytes)) * sizeof(uint32_t);
}

cudaError_t clear_counters(const GatherPlan& plan, uint32_t* counters, const Launch& launch) {
  const int64_t num_slots = plan.gather.units.row_units.rows.num_slots;
  if (num_slots == 0) return cudaSuccess;
  const int64_t count = plan.blocks / plan.gather.unit_blocks * num_slots;
  return cudaMemsetAsync(counters, 0, static_cast<size_t>(count) * sizeof(uint32_t), launch.stream);
}

// ---- Sums.

int64_t schedule_length(const Topology& topology) { return schedule_length(rows_of(topology)); }

namespace {

bool is_supported(const SpmmSumArgs& args) {
  const int64_t len = args.heads * args.dim;
  return fits_gather(len) && args.type != DType::kDouble && args.out_type != DType::kDouble &&
         (args.weight == nullptr || may_mix(args.type, args.weight_type));
}

int64_t id_bytes(const Topology& topology) { return topology.is_int64 ? 8 : 4; }

// Weights that lie in another order than that of the walk, one for each edge, beside rows that lanes read by vectors.
Reordering reordering_of(const SpmmSumArgs& args) {
  const bool is_scattered = args.weight != nullptr && args.topology.edge_ids != nullptr && !args.feat_by_edge;
  const int64_t vector = kMaxAccessBytes / size_of(args.type);
  const bool has_vectors = args.dim % vector == 0 && are_aligned(kMaxAccessBytes, args.feat) &&
                           are_aligned(store_alignment(args.out_type, vector), args.out);
  if (!is_scattered || args.heads != 1 || !has_vectors) return {};
  return reordering_of(current_device(), args.topology.num_edges, id_bytes(args.topology), size_of(args.weight_type));
}

GatherShape shape_of(const SpmmSumArgs& args) {
  int64_t stream = args.feat_by_edge && args.topology.edge_ids == nullptr ? 0 : id_bytes(args.topology);
  if (args.weight != nullptr) {
    const bool is_scattered = args.topology.edge_ids != nullptr;
    const int64_t bytes = args.heads * size_of(args.weight_type);
    stream += is_scattered ? id_bytes(args.topology) + scattered_bytes(current_device(), args.topology.num_edges, bytes)
                           : bytes;
  }
  const RowWork& work = args.weight != nullptr ? kWeightedSumWork : kSumWork;
  return {args.feat, args.feat_rows,     args.heads * args.dim * size_of(args.type), args.feat_by_edge, stream, work,
          0,         reordering_of(args)};
}

// Partial sums, counters, and weights in order: offsets in a workspace, and where it ends.
struct SumSpace {
  size_t counters, weights, end;

  SumSpace(const SpmmSumArgs& args, const GatherShape& shape) {
    const Rows rows = rows_of(args.topology);
    const int64_t len = args.heads * args.dim;
    counters = partial_bytes(rows, len);
    end = weights = counters + counter_bytes(rows, len * size_of(args.type));
    if (shape.reordering.once_bytes == 0 || !plan_gather(args.topology, shape, kMaxAccessBytes, 1, 4).reorders) return;
    end += static_cast<size_t>(args.topology.num_edges * size_of(args.weight_type));
  }
};

}  // namespace

size_t spmm_sum_workspace(const SpmmSumArgs& args) { return SumSpace(args, shape_of(args)).end; }

cudaError_t spmm_sum(const SpmmSumArgs& args, const Launch& launch) {
  const int64_t len = args.heads * args.dim;
  if (!is_supported(args)) return cudaErrorInvalidValue;
  if (args.topology.num_rows == 0 || len == 0) return cudaSuccess;

  SumKernelArgs kernel_args{};
  kernel_args.edge_ids = edge_ids_of(args.topology);
  kernel_args.columns = indices_of(args.topology);
  kernel_args.feat_by_edge = args.feat_by_edge;
  kernel_args.weight = args.weight;
  kernel_args.weight_type = args.weight_type;
  kernel_args.weight_row_bytes = static_cast<uint32_t>(args.heads * size_of(args.weight_type));
  kernel_args.scale = inverse_degrees_of(args.mean_indptr, args.topology);
  kernel_args.factor = args.factor;
  kernel_args.divide_by_degree = args.divide_by_degree;
  kernel_args.scales_result = args.divide_by_degree || args.factor != 1.f;
  kernel_args.out = args.out;
  kernel_args.out_type = args.out_type;
  const GatherShape shape = shape_of(args);
  const SumSpace space(args, shape);
  char* const workspace = static_cast<char*>(launch.workspace);
  kernel_args.partial = static_cast<float*>(launch.workspace);
  kernel_args.counters = reinterpret_cast<uint32_t*>(workspace + space.counters);
  kernel_args.ordered_weight = workspace + space.weights;
  kernel_args.schedule = {args.topology.schedule};
  return with_type(args.type,
                   [&](auto t) { return spmm_sum_of<TypeOf<decltype(t)>>(args, kernel_args, shape, launch); });
}

// ---- Maxima and minima.

namespace {

// The operand that is copied.
const Operand& copied(const SpmmArgs& args) { return args.op == Op::kCopyLhs ? args.lhs : args.rhs; }

bool has_extremum_kernel(const SpmmArgs& args) {
  if (!is_argument_reduce(args.reduce) || (args.op != Op::kCopyLhs && args.op != Op::kCopyRhs)) return false;
  const Operand& operand = copied(args);
  return operand.target != Target::kRow && operand.type != DType::kDouble && args.out_type != DType::kDouble &&
         operand.len == args.out_len && fits_gather(args.out_len);
}

cudaError_t spmm_extremum(const SpmmArgs& args, const Launch& launch) {
  if (args.topology.num_rows == 0 || args.out_len == 0) return cudaSuccess;
  const Rows rows = rows_of(args.topology);
  const Operand& operand = copied(args);
  const bool by_edge = operand.target == Target::kEdge;
  const int64_t stream = by_edge && args.topology.edge_ids == nullptr ? 0 : id_bytes(args.topology);
  const GatherShape shape{operand.data, operand.rows, operand.len * size_of(operand.type),
                          by_edge,      stream,       kExtremumWork};

  ExtremumKernelArgs kernel_args{};
  kernel_args.result = {edge_ids_of(args.topology), args.reduce == Reduce::kMin, args.out, args.out_type, args.arg,
                        args.topology.is_int64};
  kernel_args.partial = static_cast<float*>(launch.workspace);
  kernel_args.partial_position = static_cast<uint32_t*>(launch.workspace) + rows.num_slots * args.out_len;
  kernel_args.counters = kernel_args.partial_position + rows.num_slots * args.out_len;
  kernel_args.schedule = {args.topology.schedule};
  return with_type(operand.type,
                   [&](auto t) { return spmm_extremum_of<TypeOf<decltype(t)>>(args, kernel_args, shape, launch); });
}

}  // namespace

size_t spmm_workspace(const SpmmArgs& args) {
  if (!has_extremum_kernel(args)) return spmm_general_workspace(args);
  const Rows rows = rows_of(args.topology);
  return 2 * partial_bytes(rows, args.out_len) +  // values and positions
         counter_bytes(rows, args.out_len * size_of(copied(args).type));
}

cudaError_t spmm(const SpmmArgs& args, const Launch& launch) {
  return has_extremum_kernel(args) ? spmm_extremum(args, launch) : spmm_general(args, launch);
}

}  // namespace halfgnn::cuda
