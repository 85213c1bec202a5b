// Dot attention on tensor cores whose edges add a bias or columns (edges.cuh): the passes of pair/lanes/dot_edges.cuh,
// of the same arguments and with the same results. Include only where kernels are instantiated
// (dot_tensor_edges_<type>.cu).
#pragma once

#include "dot_attention.cuh"

namespace halfgnn::cuda {

// Gradients with columns need more registers than they would have: on sm_120.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr bool kColumnsAreLarge = true;
#else
constexpr bool kColumnsAreLarge = false;
#endif

// At most 128 registers for narrow heads, 168 for wide ones; a step more where that is not enough.
constexpr int tensor_edges_min_blocks(PairPass pass, int blocks, TensorTerms terms) {
  const bool is_large = kColumnsAreLarge && pass == PairPass::kRecordingDestinations && terms == TensorTerms::kColumns;
  return (blocks > 1 ? 3 : 4) - (is_large ? 1 : 0);
}

template <typename T, PairPass kPairPass, int kBlocks, TensorTerms kTerms>
__global__ void __launch_bounds__(kTensorThreads, tensor_edges_min_blocks(kPairPass, kBlocks, kTerms))
    dot_tensor_edges_kernel(const PairArgs args) {
  using Lane = PairTensorLane<DotTensorScore, T, kPairPass, kBlocks, kTerms>;
  __shared__ typename Lane::Shared shared;
  run_dot_tensor<Lane>(args, shared);
}

template <typename T, PairPass kPairPass, TensorTerms kTerms>
cudaError_t dot_tensor_edges_pass(const PairArgs& args, int64_t dim, const Launch& launch) {
  const PairArgs of_heads = with_tensor_blocks(args);
  const int64_t blocks = static_cast<int64_t>(of_heads.blocks_per_slice) * args.layout.heads;
  const auto start = [&](void (*kernel)(PairArgs)) {
    return cuda::launch(kernel, blocks, kTensorThreads, launch.stream, of_heads);
  };
  if (dim <= kTensorBlock) return start(dot_tensor_edges_kernel<T, kPairPass, 1, kTerms>);
  return start(dot_tensor_edges_kernel<T, kPairPass, 2, kTerms>);
}

template <typename T>
cudaError_t dot_tensor_edges_of(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  constexpr auto kBias = TensorTerms::kBias, kColumns = TensorTerms::kColumns;
  constexpr auto kForward = PairPass::kForward, kDestinations = PairPass::kRecordingDestinations;
  const bool has_columns = args.edge.has_columns();
  switch (pass) {
    case kForward:
      return has_columns ? dot_tensor_edges_pass<T, kForward, kColumns>(args, shape.dim, launch)
                         : dot_tensor_edges_pass<T, kForward, kBias>(args, shape.dim, launch);
    case kDestinations:
      return has_columns ? dot_tensor_edges_pass<T, kDestinations, kColumns>(args, shape.dim, launch)
                         : dot_tensor_edges_pass<T, kDestinations, kBias>(args, shape.dim, launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace halfgnn::cuda
