// What one instantiation of the kernel on tensor cores is made for.
#pragma once

#include <type_traits>

#include "../edges.cuh"
#include "../score.cuh"

namespace halfgnn::cuda {

// Gradients with columns need more registers than they would have: on sm_120.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr bool kColumnsAreLarge = true;
#else
constexpr bool kColumnsAreLarge = false;
#endif

// So do GATv2's of destinations with wide heads in bf16 before sm_90, which compares no pairs of bfloat16.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kBFloat16IsLarge = true;
#else
constexpr bool kBFloat16IsLarge = false;
#endif

// Of a score and of edges: the policies of score.cuh and edges.cuh. kBlocksOfHead: of 64 elements.
template <class ScoreOf, class EdgesOf, typename T, PairPass kPairPass, int kBlocksOfHead>
struct TensorConfig {
  using Element = T;
  static constexpr PairPass kPass = kPairPass;
  static constexpr int kBlocks = kBlocksOfHead;
  static constexpr PairScore kScore = ScoreOf::kScore;
  using Score = typename ScoreOf::template OnTensorCores<T, kPass, kBlocks>;
  using Terms = EdgesOf;
  using Edges = typename EdgesOf::template OnTensorCores<T, kPass>;

  static constexpr bool kForward = kPass == PairPass::kForward;
  static constexpr bool kToDestinations = kPass == PairPass::kDestinations || kPass == PairPass::kRecordingDestinations;
  static constexpr bool kSumsValues = !kToDestinations;
  static constexpr bool kOneRow = keys_are_values(kScore, kPass);
  static constexpr bool kWritesProducts = kScore == PairScore::kLeaky && !kForward;

  // Warps of a multiprocessor: for 128 registers, or 168 with wide heads. 96 for the results of narrow ones of dot
  // attention. GATv2's gradients of sources need a step more.
  static constexpr int min_warps() {
    constexpr int warps = kBlocks > 1 ? 12 : 16, step = 4;
    if (kScore == PairScore::kLeaky) {
      const bool is_large = kBFloat16IsLarge && std::is_same_v<T, __nv_bfloat16> && kBlocks > 1 && !kForward;
      return warps - (is_large || kPass == PairPass::kSources ? step : 0);
    }
    if (Terms::kHasTerms) return warps - (kColumnsAreLarge && Terms::kMayBeWide && !kForward ? step : 0);
    return warps + (kForward && kBlocks == 1 ? step : 0);
  }
  static constexpr int min_blocks() { return blocks_for(min_warps(), kTensorWarps); }
};

}  // namespace halfgnn::cuda
