// GATv2 with columns of edges: pair/pass.h. Include only where kernels are instantiated.
#pragma once

#include "../projected_gradients.cuh"
#include "gatv2_attention.cuh"

namespace halfgnn::cuda {

template <typename T>
cudaError_t gatv2_columns_of(PairPass pass, const PairArgs& args, const Launch& launch) {
  switch (pass) {
    case PairPass::kForward: return launch_pair<PairProjectedConfig<Gatv2Score, T, PairPass::kForward>>(args, launch);
    case PairPass::kRecordingDestinations:
      return launch_pair<PairProjectedConfig<Gatv2Score, T, PairPass::kRecordingDestinations>>(args, launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace halfgnn::cuda
