#include "mul_backward.h"

#include <limits>

#include "../core/alignment.h"
#include "../core/combine.h"
#include "../core/types.cuh"
#include "../plan/backward.h"
#include "../plan/device.h"
#include "../plan/heads.h"
#include "../plan/teams.h"
#include "mul_backward_launch.h"

namespace halfgnn::cuda {
namespace {

bool is_valid(const MulBackwardArgs& args) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max() / static_cast<int64_t>(sizeof(float));
  return args.type != DType::kDouble && (args.grad_type == args.type || args.grad_type == DType::kFloat) &&
         may_mix(args.type, args.weight_type) && args.heads > 0 && args.heads <= most && args.dim > 0 &&
         args.dim <= most / args.heads;
}

int vector_of(const MulBackwardArgs& args) {
  const int64_t size = size_of(args.type), grad_size = size_of(args.grad_type);
  return widest_vector(kMaxAccessBytes / grad_size, [&](int64_t count) {
    return args.dim % count == 0 && are_aligned(count * size, args.feat, args.grad_feat) &&
           are_aligned(count * grad_size, args.grad);
  });
}

MulPlan plan_of(const MulBackwardArgs& args) {
  constexpr int kMaxLog2Groups = 3;  // times 4 edges each: the 32 whose ids a warp holds
  const int64_t grad_size = size_of(args.grad_type);
  MulPlan plan{};
  plan.vector = vector_of(args);
  const int64_t bytes = plan.vector * grad_size, vectors = args.dim / plan.vector;
  const bool is_wide = vectors > kWarpSize;
  plan.repeat = bytes == kMaxAccessBytes ? (is_wide ? 4 : 1) : bytes == kMaxAccessBytes / 2 ? 2 : 4;
  const Gathered gathered{args.grad_rows, args.heads * args.dim * grad_size, args.topology.num_edges};
  plan.layout = layout_of_whole_heads(current_device(), {args.heads, vectors, plan.repeat, kMaxLog2Groups}, gathered,
                                      args.topology.num_rows, kMulBackwardWork);
  const int log2_lanes = plan.layout.log2_lanes + plan.layout.log2_heads;
  const TeamLayout teams =
      plan_teams(args.topology.num_edges, args.topology.num_rows, log2_lanes, edges_in_flight(plan.repeat * bytes));
  plan.units = team_units_of(args.topology, teams, plan.layout.slices);
  return plan;
}

size_t dots_bytes(const MulBackwardArgs& args, const MulPlan& plan) {
  return plan.layout.tiles > 1 ? static_cast<size_t>(args.topology.num_edges * args.heads) * sizeof(float) : 0;
}

}  // namespace

size_t mul_backward_workspace(const MulBackwardArgs& args) {
  if (!is_valid(args)) return 0;
  const MulPlan plan = plan_of(args);
  return partial_bytes(plan.units.row_units.rows, args.heads * args.dim) + dots_bytes(args, plan);
}

cudaError_t mul_backward(const MulBackwardArgs& args, const Launch& launch) {
  if (args.topology.num_rows == 0 || args.heads == 0) return cudaSuccess;
  if (!is_valid(args)) return cudaErrorInvalidValue;
  MulPlan plan = plan_of(args);
  plan.partial = static_cast<float*>(launch.workspace);
  if (plan.layout.tiles > 1 && args.topology.num_edges > 0) {
    plan.dots = plan.partial + plan.units.row_units.rows.num_slots * args.heads * args.dim;
  }
  const cudaError_t status =
      with_type(args.type, [&](auto t) { return mul_backward_of<TypeOf<decltype(t)>>(args, plan, launch); });
  if (status != cudaSuccess) return status;
  return combine(
      {plan.units.row_units.rows, plan.partial, args.heads * args.dim, 1.f, false, args.grad_feat, args.type}, launch);
}

bool takes_two_gathers(const MulBackwardArgs& args, const Topology& in_edges) {
  // Dots are of rows of one type, and results of that type or fp32.
  if (args.type != args.grad_type || (args.weight_type != args.type && args.weight_type != DType::kFloat)) return false;
  const WeightedBackward problem{args.topology.num_rows,
                                 args.grad_rows,
                                 args.topology.num_edges,
                                 args.heads * args.dim * size_of(args.type),
                                 args.heads * size_of(args.weight_type),
                                 args.topology.is_int64 ? 8 : 4,
                                 in_edges.edge_ids == nullptr};
  const Device device = current_device();
  return WeightedBackwardPlanner(device, problem).takes_two_gathers();
}

}  // namespace halfgnn::cuda
