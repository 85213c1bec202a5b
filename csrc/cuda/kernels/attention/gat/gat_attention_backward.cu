// The backward launcher of gat_attention.h, and what its passes leave to be finished.

#include "../../core/long_rows.cuh"
#include "../../core/scalar.cuh"
#include "../../core/types.cuh"
#include "gat_attention.h"
#include "plan.h"

namespace halfgnn::cuda {
namespace {

// ---- Long rows: sums of their pieces' parts, and what follows from them.

constexpr int kUnroll = 4;  // slots that a lane has in flight

struct FinishArgs {
  Rows rows;
  CombineGrid grid;
  AttentionPartials partials;
  int64_t heads, dim;
  DType type, logit_type;
  float slope;
  const void* feat;
  void* grad_feat;
  void* grad_attn_src;
};

// Sums over the slots of one column, of the first vector and of the second if there is one.
__device__ void sum_slots(const FinishArgs& args, const LongRow& row, const CombineTeam& team, int64_t column,
                          double& first, double& second) {
  const int64_t len = args.heads * args.dim;
  const bool has_second = args.partials.num_vectors > 1;
  float a[kUnroll], b[kUnroll];
  first = second = 0;
  for_each_slot<kUnroll>(
      row, team,
      [&](int u, int64_t slot) {
        a[u] = __ldcs(args.partials.vector(slot, len, 0) + column);
        b[u] = has_second ? __ldcs(args.partials.vector(slot, len, 1) + column) : 0.f;
      },
      [&](int u) {
        first += static_cast<double>(a[u]);
        second += static_cast<double>(b[u]);
      });
  first = team.sum(first);
  if (has_second) second = team.sum(second);
}

// What the pieces left of the gradients of a head's logits; for the lanes of one warp.
__device__ double share_of_head(const FinishArgs& args, const LongRow& row, int64_t head, int lane) {
  double share = 0;
  for (int i = lane; i < row.num_slots; i += kWarpSize) {
    share += static_cast<double>(args.partials.load_sums(row.slot(i), args.heads, head).sum);
  }
  return sum_of_warp(share);
}

__device__ void fold_head(const FinishArgs& args, const LongRow& part, const CombineTeam& team, int64_t head) {
  const int64_t len = args.heads * args.dim;
  for (int64_t begin = 0; begin < args.dim; begin += kWarpSize) {
    const bool exists = begin + team.lane < args.dim;
    const int64_t column = head * args.dim + (exists ? begin + team.lane : args.dim - 1);
    double first, second;
    sum_slots(args, part, team, column, first, second);
    if (team.warp != 0 || !exists) continue;
    args.partials.vector(part.slot(0), len, 0)[column] = static_cast<float>(first);
    if (args.partials.num_vectors > 1) args.partials.vector(part.slot(0), len, 1)[column] = static_cast<float>(second);
  }
  if (team.warp != 0) return;
  const double share = share_of_head(args, part, head, team.lane);
  if (team.lane == 0)
    args.partials.store_sums(part.slot(0), args.heads, head, {0.f, static_cast<float>(share), 0.f, 0.f});
}

__device__ void finish_head(const FinishArgs& args, const LongRow& row, const CombineTeam& team, int64_t head) {
  const bool has_dots = args.partials.num_vectors == 1;
  const double slope = args.slope;
  double gradient = 0;
  for (int64_t begin = 0; begin < args.dim; begin += kWarpSize) {
    const bool exists = begin + team.lane < args.dim;
    const int64_t column = head * args.dim + (exists ? begin + team.lane : args.dim - 1);
    double sum, positive;
    sum_slots(args, row, team, column, sum, positive);
    if (team.warp != 0 || !exists) continue;
    const int64_t at = row.row * args.heads * args.dim + column;
    store_scalar(args.grad_feat, args.type, at, static_cast<float>(sum));
    if (!has_dots) {
      gradient += static_cast<double>(load_scalar(args.feat, args.type, at)) * (slope * sum + (1. - slope) * positive);
    }
  }
  if (team.warp != 0) return;
  const double share = share_of_head(args, row, head, team.lane);
  gradient = sum_of_warp(gradient) + (has_dots ? share : -share);
  if (team.lane == 0) {
    store_scalar(args.grad_attn_src, args.logit_type, row.row * args.heads + head, static_cast<float>(gradient));
  }
}

template <bool kFolds>
__global__ void __launch_bounds__(kCombineThreads, 1) finish_long_rows_kernel(const FinishArgs args) {
  for_each_long_row<kFolds>(args.rows, args.grid,
                            [&](const LongRow& row, const CombineTeam& team, int64_t first, int64_t step) {
                              for (int64_t head = first; head < args.heads; head += step) {
                                if constexpr (kFolds) {
                                  fold_head(args, row, team, head);
                                } else {
                                  finish_head(args, row, team, head);
                                }
                              }
                            });
}

cudaError_t finish_long_rows(const GatArgs& args, const GatPlan& plan, const AttentionPartials& partials,
                             const Launch& launch) {
  if (plan.units.rows.num_slots == 0) return cudaSuccess;
  const FinishArgs kernel{plan.units.rows,   {},
                          partials,          args.heads,
                          args.dim,          args.type,
                          args.logit_type,   static_cast<float>(args.negative_slope),
                          args.feat,         args.grad_feat,
                          args.grad_attn_src};
  return launch_combine(finish_long_rows_kernel<true>, finish_long_rows_kernel<false>, kernel, plan.units.rows,
                        args.heads, launch.stream);
}

// ---- Several tiles: grad_attn_src is the sum of what they left.

struct TilesArgs {
  Rows rows;
  int64_t heads;
  int32_t tiles;
  const float* parts;
  void* grad_attn_src;
  DType type;
};

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) sum_tiles_kernel(const TilesArgs args) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.rows.num_rows * args.heads) return;
  const int64_t row = i / args.heads;
  if (args.rows.is_long(args.rows.indptr.offset(row + 1) - args.rows.indptr.offset(row))) return;
  float sum = 0.f;
  for (int32_t tile = 0; tile < args.tiles; ++tile) sum += __ldcs(args.parts + i * args.tiles + tile);
  store_scalar(args.grad_attn_src, args.type, i, sum);
}

cudaError_t sum_tiles(const GatArgs& args, const GatPlan& plan, const float* parts, const Launch& launch) {
  if (plan.layout.tiles == 1) return cudaSuccess;
  const TilesArgs kernel{plan.units.rows, args.heads, plan.layout.tiles, parts, args.grad_attn_src, args.logit_type};
  return cuda::launch(sum_tiles_kernel, ceil_div(args.topology.num_rows * args.heads, kThreads), kThreads,
                      launch.stream, kernel);
}

// ---- The launcher.

uintptr_t address_bits(const GatArgs& args) {
  uintptr_t bits = 0;
  for (const void* data :
       {args.feat, args.grad, static_cast<const void*>(args.grad_feat), static_cast<const void*>(args.out.value),
        static_cast<const void*>(args.out.residual), static_cast<const void*>(args.positive)}) {
    bits |= reinterpret_cast<uintptr_t>(data);
  }
  return bits;
}

struct BackwardPlan {
  GatPlan gather;
  GatSums sums;
  bool has_edge_pass;  // gradients of edge logits by a kernel of their own

  int num_vectors() const { return sums == GatSums::kDots ? 1 : 2; }
  GatBackwardSpace take_space(const GatArgs& args, Workspace& workspace) const {
    const int64_t tiles = gather.layout.tiles;
    GatBackwardSpace space{};
    space.records = workspace.take<GatRecord>(args.num_cols * args.heads);
    space.partials = take_partials(workspace, gather.units.rows, args.heads, args.dim, num_vectors());
    if (tiles > 1) space.row_parts = workspace.take<float>(args.topology.num_rows * args.heads * tiles);
    return space;
  }
};

BackwardPlan plan_backward(const GatArgs& args) {
  const bool wants_edges = args.edge_logits != nullptr && args.grad_edge_logits != nullptr;
  BackwardPlan plan{plan_gat(args, address_bits(args), wants_edges), GatSums::kPositive, false};
  if (wants_edges) {
    plan.has_edge_pass = plan.gather.layout.tiles > 1;
    if (!plan.has_edge_pass) plan.sums = GatSums::kDots;
  }
  return plan;
}

cudaError_t prepare(const GatArgs& args, int vector, GatRecord* records, const Launch& launch) {
  return with_type(args.type,
                   [&](auto t) { return gat_prepare_backward_of<TypeOf<decltype(t)>>(args, vector, records, launch); });
}
cudaError_t walk(const GatArgs& args, const BackwardPlan& plan, const GatBackwardSpace& space, const Launch& launch) {
  return with_type(args.type, [&](auto t) {
    return gat_attention_backward_of<TypeOf<decltype(t)>>(args, plan.gather, plan.sums, space, launch);
  });
}
cudaError_t find_edge_gradients(const GatArgs& args, const GatPlan& plan, const GatRecord* records,
                                const Launch& launch) {
  return with_type(args.type,
                   [&](auto t) { return gat_edge_gradient_of<TypeOf<decltype(t)>>(args, plan, records, launch); });
}

}  // namespace

size_t gat_attention_backward_workspace(const GatArgs& args) {
  if (!is_valid_gat(args)) return 0;
  Workspace workspace(nullptr);
  plan_backward(args).take_space(args, workspace);
  return workspace.bytes();
}

cudaError_t gat_attention_backward(const GatArgs& args, const Launch& launch) {
  if (args.heads * args.dim == 0) return cudaSuccess;
  if (!is_valid_gat(args)) return cudaErrorInvalidValue;
  const BackwardPlan plan = plan_backward(args);
  Workspace workspace(launch.workspace);
  const GatBackwardSpace space = plan.take_space(args, workspace);

  cudaError_t status = cudaSuccess;
  if (args.num_cols > 0) status = prepare(args, plan.gather.vector, space.records, launch);
  if (status != cudaSuccess || args.topology.num_rows == 0) return status;
  status = walk(args, plan, space, launch);
  if (status == cudaSuccess) status = sum_tiles(args, plan.gather, space.row_parts, launch);
  if (status == cudaSuccess) status = finish_long_rows(args, plan.gather, space.partials, launch);
  if (status == cudaSuccess && plan.has_edge_pass) {
    status = find_edge_gradients(args, plan.gather, space.records, launch);
  }
  return status;
}

}  // namespace halfgnn::cuda
