// The forward launcher of gat_attention.h, and how work is divided in both directions.

#include "gat_attention.h"

#include <limits>

#include "../../core/types.cuh"
#include "../../plan/device.h"
#include "../../plan/heads.h"
#include "plan.h"

namespace halfgnn::cuda {

bool is_valid_gat(const GatArgs& args) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max() / static_cast<int64_t>(sizeof(float));
  return args.type != DType::kDouble && (args.logit_type == args.type || args.logit_type == DType::kFloat) &&
         args.heads > 0 && args.heads <= most && args.dim > 0 && args.dim <= most / args.heads;
}

namespace {

constexpr int kMaxLog2Groups = 3;  // times 4 edges each: the 32 whose ids a warp holds

// `lane_bytes`: of a row that a lane reads.
HeadLayout choose_layout(const GatArgs& args, int64_t lane_bytes, bool whole_heads) {
  const int64_t head_bytes = args.dim * size_of(args.type), id_bytes = args.topology.is_int64 ? 8 : 4;
  const bool has_logits = args.edge_logits != nullptr;
  const bool has_edge_ids = args.topology.edge_ids != nullptr && (has_logits || args.dropout.seed != nullptr);
  const Gathered gathered{args.num_cols, args.heads * head_bytes, args.topology.num_edges};
  const HeadStream stream{args.topology.num_rows,
                          kGatWork,
                          has_edge_ids ? 2 * id_bytes : id_bytes,
                          has_logits ? size_of(args.logit_type) : 0,
                          sizeof(float),
                          kPairWork};
  const HeadShape shape{args.heads, ceil_div(head_bytes, lane_bytes), 1, kMaxLog2Groups};
  return layout_of_parts(current_device(), shape, gathered, lane_bytes, stream, whole_heads);
}

// Short rows of a unit, at least: one per group, unless those are too many edges for one warp.
int32_t least_log2_rows(const Topology& topology, const HeadLayout& layout) {
  constexpr int64_t kManyEdges = 64;
  const int32_t log2_groups = layout.log2_groups();
  return topology.num_edges << log2_groups <= kManyEdges * topology.num_rows ? log2_groups : 0;
}

}  // namespace

GatPlan plan_gat(const GatArgs& args, uintptr_t bits, bool whole_heads) {
  const int64_t size = size_of(args.type);
  GatPlan plan{};
  plan.vector = static_cast<int>(kMaxAccessBytes / size);
  while (args.dim % plan.vector != 0 || bits % static_cast<uintptr_t>(plan.vector * size) != 0) plan.vector /= 2;
  // As the kernels have it: 16 bytes per lane, four vectors at most.
  const int64_t full = kMaxAccessBytes / (plan.vector * size), repeat = full < 4 ? full : 4;
  plan.layout = choose_layout(args, repeat * plan.vector * size, whole_heads);
  plan.layout.vectors = static_cast<int32_t>(args.dim / plan.vector);
  plan.units = row_units_of(args.topology, plan.slices(), least_log2_rows(args.topology, plan.layout));
  return plan;
}

namespace {

int num_vectors(const GatArgs& args) { return args.positive == nullptr ? 1 : 2; }

uintptr_t address_bits(const GatArgs& args) {
  uintptr_t bits = 0;
  for (const void* data : {args.feat, static_cast<const void*>(args.out.value),
                           static_cast<const void*>(args.out.residual), static_cast<const void*>(args.positive)}) {
    bits |= reinterpret_cast<uintptr_t>(data);
  }
  return bits;
}

}  // namespace

size_t gat_attention_workspace(const GatArgs& args) {
  if (!is_valid_gat(args)) return 0;
  Workspace workspace(nullptr);
  take_partials(workspace, rows_of(args.topology), args.heads, args.dim, num_vectors(args));
  return workspace.bytes();
}

cudaError_t gat_attention(const GatArgs& given, const Launch& launch) {
  GatArgs args = given;
  if (args.lse == nullptr) args.out.residual = nullptr;  // nobody will read it
  if (args.topology.num_rows == 0 || args.heads * args.dim == 0) return cudaSuccess;
  if (!is_valid_gat(args)) return cudaErrorInvalidValue;
  const GatPlan plan = plan_gat(args, address_bits(args), false);
  Workspace workspace(launch.workspace);
  const AttentionPartials partials = take_partials(workspace, plan.units.rows, args.heads, args.dim, num_vectors(args));
  const cudaError_t status =
      with_type(args.type, [&](auto t) { return gat_attention_of<TypeOf<decltype(t)>>(args, plan, partials, launch); });
  if (status != cudaSuccess) return status;
  return combine_attention({plan.units.rows, partials, args.heads, args.dim, args.type, args.out,
                            static_cast<float*>(args.lse), args.positive},
                           launch);
}

}  // namespace halfgnn::cuda
