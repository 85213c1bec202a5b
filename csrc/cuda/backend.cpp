// The CUDA back end: every kernel on the current stream, with a workspace from PyTorch's allocator.

#include "backend.h"

#include <limits>

#include "../torch/cuda.h"
#include "../torch/errors.h"
#include "../torch/tensor.h"
#include "gather_rows.h"
#include "kernels/attention/gat/gat_attention.h"
#include "kernels/attention/gat/head_logits.h"
#include "kernels/attention/pair/pair_attention.h"
#include "kernels/general/backward.h"
#include "kernels/graph/graph.h"
#include "kernels/sddmm/sddmm.h"
#include "kernels/softmax/edge_softmax.h"
#include "kernels/spmm/code_sum.h"
#include "kernels/spmm/copy_reduce.h"
#include "kernels/spmm/edge_sum.h"
#include "kernels/spmm/gated_sum.h"
#include "kernels/spmm/mul_backward.h"
#include "kernels/spmm/spmm.h"

namespace halfgnn::cuda {
namespace {

// Kernels hold ids in 32 bits.
void check_sizes(const Topology& topology) {
  constexpr int64_t most = std::numeric_limits<uint32_t>::max() - 1;
  CHECK_VALUE(topology.num_edges <= most && topology.num_rows <= most, "the graph has ", topology.num_edges,
              " edges and ", topology.num_rows, " rows; expected at most ", most, " of each on CUDA");
  if (topology.schedule == nullptr) return;
  const int64_t expected = schedule_length(topology);
  CHECK_VALUE(topology.schedule_length == expected, "schedule has ", topology.schedule_length, " entries; expected ",
              expected, " for this number of rows and edges");
}
void check_broadcast(const Broadcast& broadcast) {
  CHECK_VALUE(broadcast.num_dims <= kMaxBroadcastDims, "lhs_data and rhs_data broadcast over ", broadcast.num_dims,
              " dimensions that cannot be merged; expected at most ", kMaxBroadcastDims, " on CUDA");
}

template <class Args>
void check(const Args& args) {
  check_sizes(args.topology);
}
void check(const SpmmArgs& args) {
  check_sizes(args.topology);
  check_broadcast(args.broadcast);
}
void check(const SddmmArgs& args) {
  check_sizes(args.topology);
  check_broadcast(args.broadcast);
}
void check(const PairAttentionArgs& args) {
  check_sizes(args.topology);
  check_sizes(args.by_src);
}
void check(const BackwardArgs& args) {
  check_sizes(args.topology);
  check_broadcast(args.broadcast);
}

// Runs kLaunch with a workspace of kWorkspace(args) bytes, which is free for others once the kernels are queued: those
// run later on the same stream.
template <auto kLaunch, auto kWorkspace = nullptr, class Args>
void run(const Args& args) {
  check(args);
  Tensor workspace;
  Launch launch{current_stream()};
  if constexpr (kWorkspace != nullptr) {
    const auto bytes = static_cast<int64_t>(kWorkspace(args));
    if (bytes > 0) {
      workspace = empty({bytes}, options_of(ScalarType::Byte, kDevice));
      launch.workspace = workspace.mutable_data_ptr();
    }
  }
  CHECK_CUDA(kLaunch(args, launch));
}

}  // namespace

const Backend kBackend{
    /*has_double=*/false,
    [](DType type, int64_t dim) { return type != DType::kDouble && dim > 0; },
    [](DType lhs, DType rhs, DType out, int64_t dim) {
      return lhs == rhs && lhs != DType::kDouble && (out == lhs || out == DType::kFloat) && dim > 0;
    },
    [](DType type, int64_t heads, int64_t dim) { return type != DType::kDouble && heads * dim > 0; },
    [](const SpmmSumArgs& args) { run<spmm_sum, spmm_sum_workspace>(args); },
    [](const SpmmArgs& args) { run<spmm, spmm_workspace>(args); },
    [](DType type, int64_t dim) { return type != DType::kDouble && dim > 0; },
    [](const EdgeSumArgs& args) { run<edge_sum, edge_sum_workspace>(args); },
    [](const EdgeSumBackwardArgs& args) { run<edge_sum_backward, edge_sum_backward_workspace>(args); },
    [](const GatedSumArgs& args) { run<gated_sum, gated_sum_workspace>(args); },
    [](const GatedSumBackwardArgs& args) { run<gated_sum_backward, gated_sum_backward_workspace>(args); },
    [](const CodeSumArgs& args) { run<code_sum, code_sum_workspace>(args); },
    has_copy_reduce,
    /*reduces_one_extreme=*/false,
    [](const CopyReduceArgs& args) { run<copy_reduce, copy_reduce_workspace>(args); },
    [](const CopyReduceBackwardArgs& args) { run<copy_reduce_backward, copy_reduce_backward_workspace>(args); },
    [](const SddmmArgs& args) { run<sddmm_dot>(args); },
    [](const SddmmArgs& args) { run<sddmm_elementwise>(args); },
    /*mixes_elementwise=*/false,
    [](const SddmmAddArgs& args) { run<sddmm_add>(args); },
    [](const SddmmArgs& args) { run<sddmm>(args); },
    [](const MulBackwardArgs& args) { run<mul_backward, mul_backward_workspace>(args); },
    takes_two_gathers,
    [](const BackwardArgs& args) { run<backward, backward_workspace>(args); },
    [](const EdgeSoftmaxArgs& args) { run<edge_softmax, edge_softmax_workspace>(args); },
    [](const EdgeSoftmaxArgs& args) { run<edge_softmax_backward, edge_softmax_workspace>(args); },
    [](const GatArgs& args) { run<gat_attention, gat_attention_workspace>(args); },
    [](const GatArgs& args) { run<gat_attention_backward, gat_attention_backward_workspace>(args); },
    [](const HeadLogitsArgs& args) { CHECK_CUDA(head_logits(args, Launch{current_stream()})); },
    head_logits_parts,
    [](const HeadLogitsBackwardArgs& args) { CHECK_CUDA(head_logits_backward(args, Launch{current_stream()})); },
    [](const PairAttentionArgs& args) { run<pair_attention, pair_attention_workspace>(args); },
    [](const PairAttentionArgs& args) { run<pair_attention_backward, pair_attention_backward_workspace>(args); },
    has_edge_terms,
    kEdgeTermLimits,
    gather_rows,
    [](const Topology& topology) { CHECK_CUDA(check_offsets(topology, Launch{current_stream()})); },
};

}  // namespace halfgnn::cuda
