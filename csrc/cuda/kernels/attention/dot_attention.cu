#include "dot_attention.h"

#include "../core/combine.h"
#include "../core/types.cuh"
#include "pair_attention.h"

namespace halfgnn::cuda {
namespace {

bool shape_of(const DotAttentionArgs& args, PairShape& shape) {
  const uintptr_t bits = bits_of(args.query) | bits_of(args.key) | bits_of(args.value) | bits_of(args.out) |
                         bits_of(args.grad) | bits_of(args.grad_query) | bits_of(args.grad_key) |
                         bits_of(args.grad_value);
  return shape_of(args.heads, args.dim, args.type, bits, shape);
}

// The passes of a call, with their places in the workspace.
struct Forward {
  PairArgs pass;

  Forward(const DotAttentionArgs& args, const PairShape& shape, PairWorkspace& workspace)
      : pass(pair_args(args.topology, shape, args.num_src, 2)) {
    const int64_t slots = pass.units.rows.num_slots;
    pass.partials = {workspace.take<PieceSums>(slots * args.heads), workspace.take<float>(slots * shape.row_elements()),
                     1};
    pass.dots = workspace.take<float>(num_dots(args.topology, shape, 1));
    pass.own_key = args.query;
    pass.key = args.key;
    pass.value = args.value;
    pass.linear = static_cast<float>(args.scale);
    pass.dropout = mask_of(args.dropout);
    pass.out = args.out;
    pass.lse = static_cast<float*>(args.lse);
  }
};
struct Backward {
  DestinationRecord* records;
  PairArgs destinations, sources;

  Backward(const DotAttentionArgs& args, const PairShape& shape, PairWorkspace& workspace)
      : records(workspace.take<DestinationRecord>(args.topology.num_rows * args.heads)),
        destinations(pair_args(args.topology, shape, args.by_src.num_rows, 2)),
        sources(pair_args(args.by_src, shape, args.topology.num_rows, 2)) {
    float* dots = workspace.take<float>(num_dots(args.topology, shape, 2));
    for (PairArgs* pass : {&destinations, &sources}) {
      pass->partial_key = workspace.take<float>(pass->units.rows.num_slots * shape.row_elements());
      pass->dots = dots;
      pass->linear = static_cast<float>(args.scale);
      pass->dropout = mask_of(args.dropout);
      pass->records = records;
    }
    sources.partial_value = workspace.take<float>(sources.units.rows.num_slots * shape.row_elements());
    destinations.own_key = sources.key = args.query;
    destinations.own_value = sources.value = args.grad;
    destinations.key = sources.own_key = args.key;
    destinations.value = sources.own_value = args.value;
    destinations.grad_key = args.grad_query;
    sources.grad_key = args.grad_key;
    sources.grad_value = args.grad_value;
  }
};

cudaError_t run(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  return with_type(shape.type,
                   [&](auto t) { return dot_attention_of<TypeOf<decltype(t)>>(pass, args, shape, launch); });
}

}  // namespace

size_t dot_attention_workspace(const DotAttentionArgs& args) {
  PairShape shape;
  PairWorkspace workspace(nullptr);
  if (shape_of(args, shape)) Forward(args, shape, workspace);
  return workspace.bytes();
}

cudaError_t dot_attention(const DotAttentionArgs& args, const Launch& launch) {
  PairShape shape;
  if (!shape_of(args, shape)) return cudaErrorInvalidValue;
  PairWorkspace workspace(launch.workspace);
  const Forward forward(args, shape, workspace);
  const cudaError_t status = run(PairPass::kForward, forward.pass, shape, launch);
  return status == cudaSuccess ? combine_results(forward.pass, shape, launch) : status;
}

size_t dot_attention_backward_workspace(const DotAttentionArgs& args) {
  PairShape shape;
  PairWorkspace workspace(nullptr);
  if (shape_of(args, shape)) Backward(args, shape, workspace);
  return workspace.bytes();
}

cudaError_t dot_attention_backward(const DotAttentionArgs& args, const Launch& launch) {
  PairShape shape;
  if (!shape_of(args, shape)) return cudaErrorInvalidValue;
  PairWorkspace workspace(launch.workspace);
  const Backward backward(args, shape, workspace);
  const auto* lse = static_cast<const float*>(args.lse);
  cudaError_t status = find_deltas({args.topology.num_rows, args.grad, args.out, lse, backward.records}, shape, launch);
  if (status == cudaSuccess) status = run(PairPass::kDestinations, backward.destinations, shape, launch);
  if (status == cudaSuccess) status = combine_gradients(backward.destinations, shape, launch);
  if (status == cudaSuccess) status = run(PairPass::kSources, backward.sources, shape, launch);
  return status == cudaSuccess ? combine_gradients(backward.sources, shape, launch) : status;
}

}  // namespace halfgnn::cuda
