// What one instantiation of the kernel behind GATv2 and dot attention is made for.
#pragma once

#include "../pass.h"

namespace halfgnn::cuda {

// ScoreOf<T, kVector, kRepeat>: how the logits of an attention come from keys (gatv2_attention.cuh, dot_attention.cuh).
template <template <typename, int, int> class ScoreOf, typename T, PairPass kPairPass, int kVectorElements,
          int kVectorsPerLane, bool kIsTiled>
struct PairConfig {
  using Element = T;
  static constexpr PairPass kPass = kPairPass;
  static constexpr int kVector = kVectorElements;
  static constexpr int kRepeat = kVectorsPerLane;
  static constexpr bool kTiled = kIsTiled;
  using Score = ScoreOf<T, kVector, kRepeat>;
  using Row = Fragment<T, kVector>;  // one of the kRepeat parts of a row that a lane holds

  static constexpr bool kForward = kPass == PairPass::kForward;
  static constexpr bool kToDestinations = kPass == PairPass::kDestinations || kPass == PairPass::kRecordingDestinations;
  static constexpr bool kSumsValues = !kToDestinations;
  static constexpr bool kSumsKeys = !kForward;
  static constexpr bool kWritesProducts = kSumsKeys && Score::kKind == PairKind::kGatv2;
  static constexpr bool kTakesTurns = kWritesProducts;  // a warp takes several units
  static constexpr bool kOwnKeyIsValue = Score::kKind == PairKind::kGatv2 && kSumsValues && kSumsKeys;
  static constexpr bool kReadsOwnValue = !kForward && !kOwnKeyIsValue;
  // Records of edges (records.cuh), which rows of one vector per lane can have.
  static constexpr bool kWritesRecords = kPass == PairPass::kRecordingDestinations;
  static constexpr bool kReadsRecords = kPass == PairPass::kRecordedSources;
  static constexpr bool kHasRecords = kWritesRecords || kReadsRecords;
  static constexpr bool kHasSigns = kHasRecords && Score::kKind == PairKind::kGatv2;
  static constexpr bool kHasTerms = false, kHasOtherTerms = false;  // of edges; other than a bias
  static constexpr bool kHasEdgeRows = false, kHasEdgeProducts = false, kHasColumns = false, kIsProjected = false;
  static constexpr bool kTwoRows = rows_per_edge(Score::kKind, kPass) == 2;

  static constexpr int kElements = kRepeat * kVector;
  static constexpr int kLaneBytes = kElements * static_cast<int>(sizeof(T));
  static constexpr bool kIsWide = is_wide_pair(kLaneBytes);
  static constexpr int kUnroll = pair_unroll(kLaneBytes, kTwoRows ? 2 : 1);
  // Sums of a row: of values first, if there are any, and of keys last.
  static constexpr int kSums = (kSumsValues ? 1 : 0) + (kSumsKeys ? 1 : 0);
  static constexpr int kKeySum = kSums - 1;
  static constexpr bool kRunsAreShared = !kIsWide;
  static constexpr int kWarps = pair_warps(kLaneBytes);
  static constexpr int kThreads = kWarps * kWarpSize;
  // Registers: 96 with one access per lane and row, 128 with several narrow ones, 255 with wide rows.
  static constexpr int kMinBlocks = kIsWide || kRepeat > 1 ? 4 : 5;
};

// The same for a pass whose edges add to logits or values (PairEdgeArgs): a bias, or kRows and perhaps a bias.
template <template <typename, int, int> class ScoreOf, typename T, PairPass kPairPass, bool kRows>
struct PairEdgeConfig : PairConfig<ScoreOf, T, kPairPass, kMaxAccessBytes / static_cast<int>(sizeof(T)), 1, false> {
  static constexpr bool kHasTerms = true;
  static constexpr bool kHasEdgeRows = kRows, kHasOtherTerms = kRows;
  static constexpr bool kHasEdgeProducts = kRows && PairEdgeConfig::kWritesProducts;
  static constexpr int kMinBlocks = kHasEdgeProducts ? 2 : 4;  // registers: 255, or 128
};

// The same with columns of edges (PairColumnArgs), and perhaps a bias.
template <template <typename, int, int> class ScoreOf, typename T, PairPass kPairPass>
struct PairColumnsConfig : PairEdgeConfig<ScoreOf, T, kPairPass, false> {
  static constexpr bool kHasColumns = true, kHasOtherTerms = true;
};

// GATv2 with columns of edges, which a weight makes rows of (projection.cuh), and perhaps a bias.
template <template <typename, int, int> class ScoreOf, typename T, PairPass kPairPass>
struct PairProjectedConfig : PairEdgeConfig<ScoreOf, T, kPairPass, false> {
  static constexpr bool kIsProjected = true, kHasOtherTerms = true;
  static constexpr bool kTakesTurns = true;  // for one weight in shared memory
  static constexpr int kMinBlocks = PairProjectedConfig::kForward && sizeof(T) == 2 ? 3 : 2;  // registers: 168, or 255
};

// What a walk over a row does with its edges.
enum class PairStep {
  kAll,
  kDots,  // sums up dots in the workspace
  kSums   // adds rows, by the dots from there
};

}  // namespace halfgnn::cuda
