// What one instantiation of the kernel on tensor cores is made for.
#pragma once

#include "../edges.cuh"
#include "rows.cuh"

namespace halfgnn::cuda {

// Gradients with columns need more registers than they would have: on sm_120.
constexpr bool kColumnsAreLarge = kCompiledArch >= 1200;

// Of edges: the policies of edges.cuh. kBlocksOfHead: of 64 elements.
template <class EdgesOf, typename T, PairPass kPairPass, int kBlocksOfHead>
struct TensorConfig {
  using Element = T;
  static constexpr PairPass kPass = kPairPass;
  static constexpr int kBlocks = kBlocksOfHead;
  using Terms = EdgesOf;
  using Edges = typename EdgesOf::template OnTensorCores<T, kPass>;
  static constexpr bool kForward = kPass == PairPass::kForward;

  // Warps of a multiprocessor: for 128 registers, or 168 with wide heads.
  static constexpr int min_warps() {
    constexpr int warps = kBlocks > 1 ? 12 : 16, step = 4;
    return warps - (kColumnsAreLarge && Terms::kMayBeWide && !kForward ? step : 0);
  }
  static constexpr int min_blocks() { return blocks_for(min_warps(), kTensorWarps); }
};

}  // namespace halfgnn::cuda
