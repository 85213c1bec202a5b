// What one instantiation of the kernel behind GATv2 and dot attention is made for.
#pragma once

#include <type_traits>

#include "../edges.cuh"
#include "../score.cuh"

namespace halfgnn::cuda {

// Of a score and of edges: the policies of score.cuh and edges.cuh.
template <class ScoreOf, class EdgesOf, typename T, PairPass kPairPass, int kVectorElements, int kVectorsPerLane,
          bool kIsTiled>
struct PairConfig {
  using Element = T;
  static constexpr PairPass kPass = kPairPass;
  static constexpr int kVector = kVectorElements;
  static constexpr int kRepeat = kVectorsPerLane;
  static constexpr bool kTiled = kIsTiled;
  static constexpr PairScore kScore = ScoreOf::kScore;
  using Terms = EdgesOf;
  using Edges = typename EdgesOf::template OnLanes<PairConfig>;
  using Row = Fragment<T, kVector>;  // one of the kRepeat parts of a row that a lane holds

  static constexpr bool kForward = kPass == PairPass::kForward;
  static constexpr bool kToDestinations = kPass == PairPass::kDestinations || kPass == PairPass::kRecordingDestinations;
  static constexpr bool kSumsValues = !kToDestinations;
  static constexpr bool kSumsKeys = !kForward;
  static constexpr bool kWritesProducts = kSumsKeys && kScore == PairScore::kLeaky;
  static constexpr bool kTakesTurns = kWritesProducts || Terms::kTakesTurns;  // a warp takes several units
  static constexpr bool kOwnKeyIsValue = kScore == PairScore::kLeaky && kSumsValues && kSumsKeys;
  static constexpr bool kReadsOwnValue = !kForward && !kOwnKeyIsValue;
  // Records of edges (records.cuh), which rows of one vector per lane can have.
  static constexpr bool kWritesRecords = kPass == PairPass::kRecordingDestinations;
  static constexpr bool kReadsRecords = kPass == PairPass::kRecordedSources;
  static constexpr bool kHasRecords = kWritesRecords || kReadsRecords;
  static constexpr bool kHasSigns = kHasRecords && kScore == PairScore::kLeaky;
  static constexpr bool kHasEdgeProducts = Terms::kHasProducts && kWritesProducts;
  static constexpr bool kTwoRows = rows_per_edge(kScore, kPass) == 2;
  // Logits of GATv2 in two parts (score_leaky.cuh), and the own row widened once, into shared memory (own_row.cuh), in
  // place of its runs (sums.cuh). Not where edges add to keys; where a lane has several vectors it takes too many
  // registers.
  static constexpr bool kSplits = splits_logits(kScore, sizeof(T), kRepeat) && keys_are_values(kScore, kPass) &&
                                  !kReadsRecords && (!Terms::kHasTerms || Terms::kHasBias);
  using Score = typename ScoreOf::template OnLanes<T, kVector, kRepeat, kSplits>;

  // Whether products and addresses stay as they are written. Elsewhere that takes registers that there are not (dot
  // attention's passes to sources), or more instructions than the compiler's own form (floats, rows that edges add).
  static constexpr bool kKeepsProducts =
      sizeof(T) == 2 && (kScore == PairScore::kDot ? kForward || kToDestinations : kSplits || kReadsRecords);

  // A ring of copies (ring.cuh) where latency is what a pass waits for, on GPUs that have shared memory for it: 227 KiB
  // of a multiprocessor. Rows are not in registers while they are on their way, so the runs are.
  static constexpr bool kHasRing =
      kReadsRecords && kHasSigns && sizeof(T) == 2 && kCompiledArch >= 900 && kBlockLess == 0;

  static constexpr int kElements = kRepeat * kVector;
  static constexpr int kLaneBytes = kElements * static_cast<int>(sizeof(T));
  static constexpr bool kIsWide = is_wide_pair(kLaneBytes);
  static constexpr int kUnroll = pair_unroll(kLaneBytes, kRepeat, kTwoRows ? 2 : 1, Terms::kHasTerms);
  // Sums of a row: of values first, if there are any, and of keys last.
  static constexpr int kSums = (kSumsValues ? 1 : 0) + (kSumsKeys ? 1 : 0);
  static constexpr int kKeySum = kSums - 1;
  static constexpr bool kRunsAreShared = !kIsWide && !kSplits && !kHasRing;
  // Sums of halves, whose own rounding is larger by far than that of a run: edges join it one by one.
  static constexpr bool kJoinsAtOnce = kSplits || (kReadsRecords && sizeof(T) == 2 && kScore == PairScore::kLeaky);
  static constexpr int kWarps = pair_warps(Terms::kTakesTurns);
  static constexpr int kThreads = kWarps * kWarpSize;

  // Warps of a multiprocessor. Registers without terms of edges: 96 with one row per edge and one access per lane and
  // row, 128 with two rows or several narrow accesses, 255 with wide rows. bfloat16's gradients of dot attention's
  // sources need some more than that.
  static constexpr bool kIsLarge =
      kScore == PairScore::kDot && kPass == PairPass::kSources && kRepeat == 1 && std::is_same_v<T, __nv_bfloat16>;
  static constexpr int min_warps() {
    if constexpr (Terms::kHasTerms) return Terms::min_warps(kForward, kWritesProducts, static_cast<int>(sizeof(T)));
    if (kIsWide) return 8;
    if (kIsLarge) return 12;
    return kRepeat > 1 || kTwoRows ? 16 : 20 - 4 * kBlockLess;
  }
  static constexpr int min_blocks() { return blocks_for(min_warps(), kWarps); }
};

// What a walk over a row does with its edges.
enum class PairStep {
  kAll,
  kDots,  // sums up dots in the workspace
  kSums   // adds rows, by the dots from there
};

}  // namespace halfgnn::cuda
