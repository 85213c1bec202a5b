// The launchers of spmm.h, and the division of labour among the warps of their kernels.

#include "spmm.h"

#include <algorithm>
#include <cmath>

#include "../core/combine.h"
#include "../general/spmm_general.h"
#include "../plan/device.h"
#include "combine_extrema.h"
#include "spmm_launch.h"

namespace halfgnn::cuda {
namespace {

constexpr int64_t kMaxRowBytes = std::numeric_limits<int32_t>::max() / 2;

// ---- Division of labour.
//
// Narrow slices leave fewer lanes idle at the end of a row and, swept one after the other, keep a part of feat in the
// L2 cache that is read again and again. But every slice reads ids and weights anew, and works out its rows anew. The
// cost below adds up, in bytes of device memory, what a choice moves; constants are those of A100 and H100.

constexpr double kCacheSpeed = 2.3;     // L2 bandwidth / memory bandwidth
constexpr double kUsableCache = 0.75;   // of the L2 cache: streams pass through it as well
constexpr double kWarpBytes = 512;      // what memory could move while a warp starts on a piece, its share of it
constexpr double kTilingGain = 0.9;     // narrower slices than a row must cost this much less
constexpr int64_t kMinSliceBytes = 64;  // one access of device memory, two sectors of the caches
constexpr int kTeamBatches = 4;         // of a team, before its row waits for the warp
constexpr int64_t kLongUnit = 64;       // edges a warp from which blocks are halved
constexpr int kLongUnitThreads = 64;

struct Labour {
  const Topology& topology;
  const GatherShape& shape;
  int vector_bytes, repeat, unroll;

  int64_t num_vectors() const { return shape.row_bytes / vector_bytes; }
  int64_t slice_bytes(int log2_lanes) const { return (int64_t{repeat} << log2_lanes) * vector_bytes; }
  int64_t slices(int log2_lanes) const { return ceil_div(num_vectors(), int64_t{repeat} << log2_lanes); }
  int64_t average_degree() const { return topology.num_rows > 0 ? ceil_div(topology.num_edges, topology.num_rows) : 0; }
  // Edges that a team has in flight: `unroll` a group, but no more than it has ids for.
  int64_t edges_in_flight(int log2_lanes, int log2_team) const {
    const int64_t per_group = (1 << log2_lanes) < unroll ? (1 << log2_lanes) : unroll;
    return per_group << (log2_team - log2_lanes);
  }
  // The smallest team that has an average row in flight at once.
  int log2_team(int log2_lanes) const {
    int k = log2_lanes;
    while (k < kLog2Warp && edges_in_flight(log2_lanes, k) < average_degree()) ++k;
    return k;
  }

  double cost(int log2_lanes, int64_t cache) const {
    const auto edges = static_cast<double>(topology.num_edges);
    const auto slices_swept = static_cast<double>(slices(log2_lanes));
    const double gathered = edges * slices_swept * static_cast<double>(slice_bytes(log2_lanes));
    // Popular rows are hit more often than a uniform choice of rows would be.
    const double resident =
        static_cast<double>(shape.feat_rows) * static_cast<double>(std::min(slice_bytes(log2_lanes), shape.row_bytes));
    const double ratio = resident > 0 ? kUsableCache * static_cast<double>(cache) / resident : 1;
    const double missed = shape.by_edge || ratio >= 1 ? 0 : 1 - std::sqrt(ratio);
    const double warps = static_cast<double>(topology.num_rows >> (kLog2Warp - log2_team(log2_lanes)));
    return gathered / kCacheSpeed + missed * edges * static_cast<double>(shape.row_bytes) +
           slices_swept * (edges * static_cast<double>(shape.stream_bytes) + warps * kWarpBytes);
  }

  int choose_log2_lanes() const {
    int widest = log2_ceil(ceil_div(num_vectors(), repeat));
    if (widest > kLog2Warp) widest = kLog2Warp;
    if (topology.num_edges == 0) return widest;
    const int64_t cache = l2_cache_bytes();
    int best = widest;
    double least = cost(widest, cache) * kTilingGain;
    for (int k = widest - 1; k >= 0 && slice_bytes(k) >= kMinSliceBytes; --k) {
      const double here = cost(k, cache);
      if (here < least) {
        least = here;
        best = k;
      }
    }
    return best;
  }
};

}  // namespace

GatherPlan plan_gather(const Topology& topology, const GatherShape& shape, int vector_bytes, int repeat, int unroll) {
  const Labour labour{topology, shape, vector_bytes, repeat, unroll};
  GatherPlan plan{};
  Gather& gather = plan.gather;
  gather.rows = rows_of(topology);
  gather.feat = shape.feat;
  gather.num_vectors = static_cast<int32_t>(labour.num_vectors());
  gather.log2_lanes = labour.choose_log2_lanes();
  gather.log2_team = labour.log2_team(gather.log2_lanes);
  gather.team_edges =
      gather.log2_team == kLog2Warp
          ? std::numeric_limits<int32_t>::max()
          : static_cast<int32_t>(kTeamBatches * labour.edges_in_flight(gather.log2_lanes, gather.log2_team));
  const int64_t row_units = ceil_div(topology.num_rows, int64_t{1} << (kLog2Warp - gather.log2_team));
  const int64_t units = gather.rows.num_slots + row_units;
  plan.threads = topology.num_edges >= kLongUnit * row_units ? kLongUnitThreads : kGatherThreads;
  const int64_t unit_blocks = ceil_div(units, plan.threads / kWarpSize);
  gather.unit_blocks = static_cast<uint32_t>(unit_blocks);  // more are refused by launch()
  plan.blocks = labour.slices(gather.log2_lanes) * unit_blocks;
  return plan;
}

// ---- Sums.

size_t spmm_sum_workspace(const SpmmSumArgs& args) {
  return partial_bytes(rows_of(args.topology), args.heads * args.dim);
}

namespace {

bool is_supported(const SpmmSumArgs& args) {
  const int64_t len = args.heads * args.dim;
  return len <= kMaxRowBytes / static_cast<int64_t>(sizeof(float)) && args.type != DType::kDouble &&
         args.out_type != DType::kDouble &&
         (args.weight == nullptr || args.weight_type == args.type || args.weight_type == DType::kFloat);
}

int64_t id_bytes(const Topology& topology) { return topology.is_int64 ? 8 : 4; }

GatherShape shape_of(const SpmmSumArgs& args) {
  int64_t stream = args.feat_by_edge && args.topology.edge_ids == nullptr ? 0 : id_bytes(args.topology);
  if (args.weight != nullptr) {
    stream += args.heads * size_of(args.weight_type);
    if (args.topology.edge_ids != nullptr) stream += id_bytes(args.topology);
  }
  return {args.feat, args.feat_rows, args.heads * args.dim * size_of(args.type), args.feat_by_edge, stream};
}

}  // namespace

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
  kernel_args.scale = args.scale;
  kernel_args.factor = args.factor;
  kernel_args.divide_by_degree = args.divide_by_degree;
  kernel_args.out = args.out;
  kernel_args.out_type = args.out_type;
  kernel_args.partial = static_cast<float*>(launch.workspace);
  const GatherShape shape = shape_of(args);
  const cudaError_t status =
      with_type(args.type, [&](auto t) { return spmm_sum_of<TypeOf<decltype(t)>>(args, kernel_args, shape, launch); });
  if (status != cudaSuccess) return status;
  return combine(
      {rows_of(args.topology), kernel_args.partial, len, args.factor, args.divide_by_degree, args.out, args.out_type},
      launch);
}

// ---- Maxima and minima.

namespace {

// The operand that is copied.
const Operand& copied(const SpmmArgs& args) { return args.op == Op::kCopyLhs ? args.lhs : args.rhs; }

bool has_extremum_kernel(const SpmmArgs& args) {
  if (!is_argument_reduce(args.reduce) || (args.op != Op::kCopyLhs && args.op != Op::kCopyRhs)) return false;
  const Operand& operand = copied(args);
  return operand.target != Target::kRow && operand.type != DType::kDouble && args.out_type != DType::kDouble &&
         operand.len == args.out_len && args.out_len <= kMaxRowBytes / static_cast<int64_t>(sizeof(float));
}

cudaError_t spmm_extremum(const SpmmArgs& args, const Launch& launch) {
  if (args.topology.num_rows == 0 || args.out_len == 0) return cudaSuccess;
  const Rows rows = rows_of(args.topology);
  const Operand& operand = copied(args);
  const bool by_edge = operand.target == Target::kEdge;
  const int64_t stream = by_edge && args.topology.edge_ids == nullptr ? 0 : id_bytes(args.topology);
  const GatherShape shape{operand.data, operand.rows, operand.len * size_of(operand.type), by_edge, stream};

  ExtremumKernelArgs kernel_args{};
  kernel_args.result = {edge_ids_of(args.topology), args.reduce == Reduce::kMin, args.out, args.out_type, args.arg,
                        args.topology.is_int64};
  kernel_args.partial = static_cast<float*>(launch.workspace);
  kernel_args.partial_position = static_cast<uint32_t*>(launch.workspace) + rows.num_slots * args.out_len;
  const cudaError_t status = with_type(
      operand.type, [&](auto t) { return spmm_extremum_of<TypeOf<decltype(t)>>(args, kernel_args, shape, launch); });
  if (status != cudaSuccess) return status;
  return combine_extrema({rows, kernel_args.partial, kernel_args.partial_position, args.out_len, kernel_args.result},
                         launch);
}

}  // namespace

size_t spmm_workspace(const SpmmArgs& args) {
  if (!has_extremum_kernel(args)) return spmm_general_workspace(args);
  return 2 * partial_bytes(rows_of(args.topology), args.out_len);  // values and positions
}

cudaError_t spmm(const SpmmArgs& args, const Launch& launch) {
  return has_extremum_kernel(args) ? spmm_extremum(args, launch) : spmm_general(args, launch);
}

}  // namespace halfgnn::cuda
