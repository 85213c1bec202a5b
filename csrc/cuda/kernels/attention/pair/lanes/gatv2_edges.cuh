// GATv2 whose edges add to logits: pair/pass.h. Include only where kernels are instantiated.
#pragma once

#include "gatv2_attention.cuh"

namespace halfgnn::cuda {

template <typename T>
cudaError_t gatv2_edges_of(PairPass pass, const PairArgs& args, const Launch& launch) {
  switch (pass) {
    case PairPass::kForward: return pair_edges_pass<Gatv2Score, T, PairPass::kForward>(args, launch);
    case PairPass::kRecordingDestinations:
      return pair_edges_pass<Gatv2Score, T, PairPass::kRecordingDestinations>(args, launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace halfgnn::cuda
