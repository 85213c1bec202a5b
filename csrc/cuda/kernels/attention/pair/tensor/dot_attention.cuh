// The kernel of dot attention on tensor cores (sm_80 and later), for heads of whole chunks of 16 bytes. Include only
// where it is instantiated (dot_tensor_<type>.cu). It stands beside pair/lanes/dot_attention.cuh: the same passes,
// arguments and results. What a lane does is in lane.cuh.
#pragma once

#include "dot_tensor.h"
#include "lane.cuh"

namespace halfgnn::cuda {

// Logits of dot attention: linear * <own key, key>.
template <typename T, PairPass kPairPass, int kBlocks>
class DotTensorScore {
  using OwnRow = TensorOwnRow<T, kBlocks>;

 public:
  static constexpr PairKind kKind = PairKind::kDot;
  using Dots = typename OwnRow::Dots;

  __device__ DotTensorScore(const char*, int, const TensorLane&) {}
  // own_row: of one head, the row's own key.
  __device__ void load(const char* own_row, int chunks, const TensorLane& lane) { own_.load(own_row, chunks, lane); }

  template <class Batch>
  __device__ void add_dots(const Batch& batch, const typename OwnRow::Rows& rows, int block, Dots& dots) const {
    own_.add_dots(batch, rows, block, dots);
  }
  __device__ static float logit(const PairArgs& args, const Dots& dots, int i) {
    return args.logit.linear * dots.of_edge(i);
  }

 private:
  OwnRow own_;
};

// At most 96 registers for the results of narrow heads, 128 for their gradients, 168 for wide heads.
constexpr int tensor_min_blocks(PairPass pass, int blocks) {
  if (blocks > 1) return 3;
  return pass == PairPass::kForward ? 5 : 4;
}

// A warp takes one head of a unit.
template <class Lane>
__device__ void run_dot_tensor(const PairArgs& args, typename Lane::Shared& shared) {
  const auto heads = static_cast<uint32_t>(args.layout.heads);
  const uint32_t block = args.layout.by_slice ? blockIdx.x % args.blocks_per_slice : blockIdx.x / heads;
  const uint32_t head = args.layout.by_slice ? blockIdx.x / args.blocks_per_slice : blockIdx.x % heads;
  const uint32_t unit = block * kTensorWarps + threadIdx.x / kWarpSize;
  if (unit >= args.units.num_units) return;
  const int lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  Lane work(args, static_cast<int>(head), shared);
  for_each_piece(args.units, unit, lane, [&](const Piece& piece) { work.run(piece); });
}

template <typename T, PairPass kPairPass, int kBlocks>
__global__ void __launch_bounds__(kTensorThreads, tensor_min_blocks(kPairPass, kBlocks))
    dot_tensor_kernel(const PairArgs args) {
  using Lane = PairTensorLane<DotTensorScore, T, kPairPass, kBlocks>;
  __shared__ typename Lane::Shared shared;
  run_dot_tensor<Lane>(args, shared);
}

inline PairArgs with_tensor_blocks(const PairArgs& args) {
  PairArgs of_heads = args;
  of_heads.blocks_per_slice = static_cast<uint32_t>(ceil_div(args.units.num_units, kTensorWarps));
  return of_heads;
}

template <typename T, PairPass kPairPass, int kBlocks>
cudaError_t launch_dot_tensor(const PairArgs& args, const Launch& launch) {
  const int64_t blocks = static_cast<int64_t>(args.blocks_per_slice) * args.layout.heads;
  return cuda::launch(dot_tensor_kernel<T, kPairPass, kBlocks>, blocks, kTensorThreads, launch.stream, args);
}

template <typename T, PairPass kPairPass>
cudaError_t dot_tensor_pass(const PairArgs& args, int64_t dim, const Launch& launch) {
  if (dim <= kTensorBlock) return launch_dot_tensor<T, kPairPass, 1>(args, launch);
  return launch_dot_tensor<T, kPairPass, 2>(args, launch);
}

template <typename T>
cudaError_t dot_tensor_of(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  const PairArgs of_heads = with_tensor_blocks(args);
  switch (pass) {
    case PairPass::kForward: return dot_tensor_pass<T, PairPass::kForward>(of_heads, shape.dim, launch);
    case PairPass::kDestinations: return dot_tensor_pass<T, PairPass::kDestinations>(of_heads, shape.dim, launch);
    default: return dot_tensor_pass<T, PairPass::kSources>(of_heads, shape.dim, launch);
  }
}

}  // namespace halfgnn::cuda
