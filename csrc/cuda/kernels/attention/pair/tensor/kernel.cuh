// The kernel of dot attention with terms of edges on tensor cores. Include only where it is instantiated.
#pragma once

#include "../dispatch.h"
#include "backward.cuh"
#include "forward.cuh"

namespace halfgnn::cuda {

// A warp takes one head of a unit.
template <class Config>
__global__ void __launch_bounds__(kTensorThreads, Config::min_blocks()) pair_tensor_kernel(const PairArgs args) {
  using Lane = std::conditional_t<Config::kForward, TensorForward<Config>, TensorBackward<Config>>;
  __shared__ typename Lane::Shared shared;
  const auto heads = static_cast<uint32_t>(args.layout.heads);
  const uint32_t block = args.layout.by_slice ? blockIdx.x % args.blocks_per_slice : blockIdx.x / heads;
  const uint32_t head = args.layout.by_slice ? blockIdx.x / args.blocks_per_slice : blockIdx.x % heads;
  const int lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  const uint32_t unit = block * kTensorWarps + threadIdx.x / kWarpSize;
  Lane work(args, static_cast<int>(head), shared);
  if (unit >= args.units.num_units) return;
  for_each_piece(args.units, unit, lane, [&](const Piece& piece) { work.run(piece); });
}

template <class Config>
cudaError_t launch_tensor(const PairArgs& args, const Launch& launch) {
  static_assert(kTensorWarps == pair_warps(false), "blocks_per_slice is of so many warps");
  const int64_t blocks = static_cast<int64_t>(args.blocks_per_slice) * args.layout.heads;
  return cuda::launch(pair_tensor_kernel<Config>, blocks, kTensorThreads, launch.stream, args);
}

template <class Edges, typename T, PairPass kPass>
cudaError_t launch_tensor_of(const PairArgs& args, const PairShape& shape, const Launch& launch) {
  if (shape.dim <= kTensorBlock) return launch_tensor<TensorConfig<Edges, T, kPass, 1>>(args, launch);
  return launch_tensor<TensorConfig<Edges, T, kPass, 2>>(args, launch);
}

template <class Edges, typename T>
cudaError_t dot_on_tensor_cores(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  switch (pass) {
    case PairPass::kForward: return launch_tensor_of<Edges, T, PairPass::kForward>(args, shape, launch);
    case PairPass::kRecordingDestinations:
      return launch_tensor_of<Edges, T, PairPass::kRecordingDestinations>(args, shape, launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace halfgnn::cuda
