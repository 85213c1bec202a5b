#include "two_phases.h"

#include <cstdlib>
#include <cstring>
#include <limits>

#include "../../plan/device.h"
#include "../../plan/dot_phases.h"
#include "../../sddmm/sddmm.h"
#include "../gat/gat_attention.h"
#include "../shared/workspace.h"

namespace halfgnn::cuda {
namespace {

// 1 or 2; 0: as the model says. Read at every call: tests compare both in one process.
int wanted_phases() {
  const char* wanted = std::getenv("HALFGNN_DOT_PHASES");
  return wanted == nullptr ? 0 : std::strcmp(wanted, "1") == 0 ? 1 : std::strcmp(wanted, "2") == 0 ? 2 : 0;
}

// In the order of the walk: nothing but dropout needs to know which edge a logit is of.
Topology in_place(const PairAttentionArgs& call) {
  Topology topology = call.topology;
  if (call.dropout.seed == nullptr) topology.edge_ids = nullptr;
  return topology;
}

bool is_possible(const PairAttentionArgs& call) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max() / static_cast<int64_t>(sizeof(float));
  const bool has_sizes = call.heads > 0 && call.dim > 0 && call.dim <= most / call.heads;
  return call.score == PairScore::kDot && !call.edge.any() && call.type != DType::kDouble && has_sizes &&
         call.topology.num_edges > 0 && in_place(call).edge_ids == nullptr;
}

SddmmArgs dots_of(const PairAttentionArgs& call, float* logits) {
  SddmmArgs args{};
  args.topology = in_place(call);
  args.op = Op::kDot;
  args.lhs = {call.query, call.type, call.heads * call.dim, call.topology.num_rows, Target::kRow};
  args.rhs = {call.key, call.type, call.heads * call.dim, call.num_src, Target::kCol};
  args.broadcast.outer = call.heads;
  args.broadcast.inner = call.dim;
  args.out_len = call.heads;
  args.out = logits;
  args.out_type = DType::kFloat;
  return args;
}

GatArgs values_of(const PairAttentionArgs& call, const float* logits) {
  GatArgs args{};
  args.topology = in_place(call);
  args.num_cols = call.num_src;
  args.heads = call.heads;
  args.dim = call.dim;
  args.type = call.type;
  args.feat = call.value;
  args.logit_type = DType::kFloat;
  args.edge_logits = logits;
  args.negative_slope = 1;
  args.dropout = call.dropout;
  args.out = call.out;
  args.lse = call.lse;
  return args;
}

// The logits, and what follows them.
struct Space {
  float* logits;
  char* rest;

  Space(const PairAttentionArgs& call, Workspace& workspace)
      : logits(workspace.take<float>(call.topology.num_edges * call.heads)),
        rest(workspace.take<char>(static_cast<int64_t>(gat_attention_workspace(values_of(call, logits))))) {}
};

}  // namespace

bool takes_two_phases(const PairAttentionArgs& call) {
  const int wanted = wanted_phases();
  if (wanted == 1 || !is_possible(call)) return false;
  const Topology& topology = call.topology;
  const DotAttentionProblem problem{topology.num_rows, call.num_src,       topology.num_edges,       call.heads,
                                    call.dim,          size_of(call.type), topology.is_int64 ? 8 : 4};
  const Device device = current_device();
  return wanted == 2 || DotPhasesPlanner(device, problem).takes_two();
}

size_t dot_attention_in_two_phases_workspace(const PairAttentionArgs& call) {
  Workspace workspace(nullptr);
  Space(call, workspace);
  return workspace.bytes();
}

cudaError_t dot_attention_in_two_phases(const PairAttentionArgs& call, const Launch& launch) {
  Workspace workspace(launch.workspace);
  const Space space(call, workspace);
  const cudaError_t status = scaled_sddmm_dot(dots_of(call, space.logits), static_cast<float>(call.factor), launch);
  return status == cudaSuccess ? gat_attention(values_of(call, space.logits), {launch.stream, space.rest}) : status;
}

}  // namespace halfgnn::cuda
