// Dot attention whose edges add to logits or values: pair/pass.h. Include only where kernels are instantiated.
#pragma once

#include "../column_gradients.cuh"
#include "../tensor/dot_tensor.h"
#include "dot_attention.cuh"

namespace halfgnn::cuda {

template <typename T>
cudaError_t dot_edges_of(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  if constexpr (sizeof(T) == 2) {
    if (takes_tensor_cores(PairKind::kDot, pass, args, shape)) return dot_tensor_edges_of<T>(pass, args, shape, launch);
  }
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  switch (pass) {
    case PairPass::kForward:
      if (args.edge.has_columns()) {
        return launch_pair<PairColumnsConfig<DotScore, T, PairPass::kForward>>(args, launch);
      }
      return pair_edges_pass<DotScore, T, PairPass::kForward>(args, launch);
    case PairPass::kRecordingDestinations:
      if (args.edge.has_columns()) {
        return launch_pair<PairColumnsConfig<DotScore, T, PairPass::kRecordingDestinations>>(args, launch);
      }
      return pair_edges_pass<DotScore, T, PairPass::kRecordingDestinations>(args, launch);
    case PairPass::kRecordedSources:
      return launch_pair<PairConfig<DotScore, T, PairPass::kRecordedSources, widest, 1, false>>(args, launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace halfgnn::cuda
