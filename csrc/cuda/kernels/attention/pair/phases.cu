#include "phases.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "../../plan/device.h"
#include "../../plan/dot_phases.h"
#include "../../sddmm/sddmm.h"
#include "../../softmax/edge_softmax.h"
#include "../../spmm/spmm.h"
#include "../gat/gat_attention.h"
#include "../shared/workspace.h"

namespace halfgnn::cuda {
namespace {

// What HALFGNN_DOT_PHASES says: 1, one phase; 2, several; else as the model says. Read at every call: tests compare
// both in one process.
enum class Wanted { kOne, kSeveral, kFaster };
Wanted wanted_phases() {
  const char* wanted = std::getenv("HALFGNN_DOT_PHASES");
  if (wanted == nullptr) return Wanted::kFaster;
  return std::strcmp(wanted, "1") == 0   ? Wanted::kOne
         : std::strcmp(wanted, "2") == 0 ? Wanted::kSeveral
                                         : Wanted::kFaster;
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

int64_t num_src_of(const PairAttentionArgs& call) {
  return call.by_src.indptr != nullptr ? call.by_src.num_rows : call.num_src;
}
DotAttentionProblem problem_of(const PairAttentionArgs& call) {
  const Topology& topology = call.topology;
  return {topology.num_rows, num_src_of(call),   topology.num_edges,       call.heads,
          call.dim,          size_of(call.type), topology.is_int64 ? 8 : 4};
}

// The dots of a matrix of destinations and one of sources.
SddmmArgs dots_of(const PairAttentionArgs& call, const void* of_rows, const void* of_columns, float* dots) {
  SddmmArgs args{};
  args.topology = in_place(call);
  args.op = Op::kDot;
  args.lhs = {of_rows, call.type, call.heads * call.dim, call.topology.num_rows, Target::kRow};
  args.rhs = {of_columns, call.type, call.heads * call.dim, num_src_of(call), Target::kCol};
  args.broadcast.outer = call.heads;
  args.broadcast.inner = call.dim;
  args.out_len = call.heads;
  args.out = dots;
  args.out_type = DType::kFloat;
  return args;
}

// ---- Forward.

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
struct ForwardSpace {
  float* logits;
  char* rest;

  ForwardSpace(const PairAttentionArgs& call, Workspace& workspace)
      : logits(workspace.take<float>(call.topology.num_edges * call.heads)),
        rest(workspace.take<char>(static_cast<int64_t>(gat_attention_workspace(values_of(call, logits))))) {}
};

// ---- Backward.

// weights: of edges, those of all heads side by side.
SpmmSumArgs sum_of(const PairAttentionArgs& call, const Topology& topology, const void* feat, int64_t feat_rows,
                   const float* weights, double factor, void* out) {
  SpmmSumArgs args{};
  args.topology = topology;
  args.feat = feat;
  args.feat_rows = feat_rows;
  args.type = args.out_type = call.type;
  args.weight = weights;
  args.weight_type = DType::kFloat;
  args.heads = call.heads;
  args.dim = call.dim;
  args.factor = static_cast<float>(factor);
  args.out = out;
  return args;
}

struct Backward {
  float* dots;  // logits; then the gradients of the weights
  float* weights;
  float* grad_logits;  // without the factor
  EdgeSoftmaxArgs softmax, softmax_gradient;
  SpmmSumArgs sums[3];  // gradients of queries, keys and values
  char* rest;

  Backward(const PairAttentionArgs& call, Workspace& workspace) {
    const int64_t values = call.topology.num_edges * call.heads;
    dots = workspace.take<float>(values);
    weights = workspace.take<float>(values);
    grad_logits = workspace.take<float>(values);
    softmax = {in_place(call), dots, nullptr, weights, DType::kFloat, call.heads};
    softmax_gradient = {in_place(call), weights, dots, grad_logits, DType::kFloat, call.heads};
    const int64_t num_dst = call.topology.num_rows, num_src = num_src_of(call);
    sums[0] = sum_of(call, in_place(call), call.key, num_src, grad_logits, call.factor, call.grad_query);
    sums[1] = sum_of(call, call.by_src, call.query, num_dst, grad_logits, call.factor, call.grad_key);
    sums[2] = sum_of(call, call.by_src, call.grad, num_dst, weights, 1, call.grad_value);
    size_t most = edge_softmax_workspace(softmax);
    for (const SpmmSumArgs& sum : sums) most = std::max(most, spmm_sum_workspace(sum));
    rest = workspace.take<char>(static_cast<int64_t>(most));
  }
};

}  // namespace

bool takes_phases(const PairAttentionArgs& call) {
  const Wanted wanted = wanted_phases();
  if (wanted == Wanted::kOne || !is_possible(call)) return false;
  const Device device = current_device();
  return wanted == Wanted::kSeveral || DotPhasesPlanner(device, problem_of(call)).takes_phases();
}

size_t dot_attention_in_phases_workspace(const PairAttentionArgs& call) {
  Workspace workspace(nullptr);
  ForwardSpace(call, workspace);
  return workspace.bytes();
}

cudaError_t dot_attention_in_phases(const PairAttentionArgs& call, const Launch& launch) {
  Workspace workspace(launch.workspace);
  const ForwardSpace space(call, workspace);
  const SddmmArgs dots = dots_of(call, call.query, call.key, space.logits);
  const cudaError_t status = scaled_sddmm_dot(dots, static_cast<float>(call.factor), launch);
  return status == cudaSuccess ? gat_attention(values_of(call, space.logits), {launch.stream, space.rest}) : status;
}

// Sums over out-edges find their weights by the ids of edges, which must be the positions at which dots are written.
bool backward_takes_phases(const PairAttentionArgs& call) {
  const Wanted wanted = wanted_phases();
  const bool is_in_order = call.topology.edge_ids == nullptr && call.dropout.seed == nullptr;
  if (wanted == Wanted::kOne || !is_possible(call) || !is_in_order) return false;
  const Device device = current_device();
  return wanted == Wanted::kSeveral || DotPhasesPlanner(device, problem_of(call)).backward_takes_phases();
}

size_t dot_attention_backward_in_phases_workspace(const PairAttentionArgs& call) {
  Workspace workspace(nullptr);
  Backward(call, workspace);
  return workspace.bytes();
}

cudaError_t dot_attention_backward_in_phases(const PairAttentionArgs& call, const Launch& launch) {
  Workspace workspace(launch.workspace);
  const Backward backward(call, workspace);
  const Launch rest{launch.stream, backward.rest};
  const SddmmArgs logits = dots_of(call, call.query, call.key, backward.dots);
  cudaError_t status = scaled_sddmm_dot(logits, static_cast<float>(call.factor), rest);
  if (status == cudaSuccess) status = edge_softmax(backward.softmax, rest);
  if (status == cudaSuccess) status = sddmm_dot(dots_of(call, call.grad, call.value, backward.dots), rest);
  if (status == cudaSuccess) status = edge_softmax_backward(backward.softmax_gradient, rest);
  for (const SpmmSumArgs& sum : backward.sums) {
    if (status == cudaSuccess) status = spmm_sum(sum, rest);
  }
  return status;
}

}  // namespace halfgnn::cuda
