// Instructions that warps execute: the third bound of every kernel, beside the L2 cache and device memory.
//
// The numbers are of sm_90, for fp16, int32 ids and accesses of 16 bytes; those of other types and architectures differ
// by less than a fifth. They follow from what an emulator executes of rows of 7 and of 1,024 edges with 1 x 128
// (laboratory/machine_code/paths.csv; laboratory/plan/test_paths.py holds them to it): a batch is 8 edges at "per
// edge", and `row` is what then is left of the rows of 7 edges that a warp walks together.
#pragma once

#include <algorithm>
#include <cstdint>

namespace halfgnn::cuda {

// Who takes a row.
enum class RowSharing {
  kWarp,
  kTeams,   // of plan_teams (teams.h)
  kGroups,  // a group, if the row has no more edges than the group has lanes; otherwise a warp
  kNone     // warps take edges, across rows
};

struct RowWork {
  double row;    // of a warp, for the rows that it walks at the same time: all but batches
  double batch;  // of a warp, for a batch of kBatchAccesses accesses of kAccessBytes per lane: 2 KiB
  RowSharing sharing = RowSharing::kWarp;
};
constexpr double kBatchAccesses = 4;
constexpr int64_t kAccessBytes = 16;

constexpr RowWork kSumWork{76, 110, RowSharing::kTeams};  // without weights
constexpr RowWork kWeightedSumWork{84, 128, RowSharing::kTeams};
constexpr RowWork kEdgeSumWork{125, 242, RowSharing::kTeams};  // of relu_add, which takes most; so its gradients
constexpr RowWork kEdgeSumBackwardWork{127, 376, RowSharing::kTeams};
// Without normalization: forward, to destinations, to sources.
constexpr RowWork kGatedSumWork[] = {
    {188, 580, RowSharing::kTeams}, {127, 690, RowSharing::kTeams}, {196, 811, RowSharing::kTeams}};
// The same with values of edges.
constexpr RowWork kGatedValuesWork[] = {
    {200, 654, RowSharing::kTeams}, {183, 926, RowSharing::kTeams}, {225, 863, RowSharing::kTeams}};
constexpr RowWork kExtremumWork{213, 135, RowSharing::kTeams};
constexpr RowWork kCopyReduceWork{880, 343, RowSharing::kTeams};  // of sums, squares and both extremes
constexpr RowWork kCopyReduceBackwardWork{538, 604, RowSharing::kTeams};
constexpr RowWork kMulBackwardWork{189, 250, RowSharing::kTeams};
constexpr RowWork kDotWork{80, 168, RowSharing::kNone};
// The weight of a GAT edge in one head: 100 for 32 of them, less what a short row's window costs in `row`.
constexpr double kPairWork = 100. / 32;
// GAT, beside those weights: the forward without a backward, with one, and the backward.
constexpr RowWork kGatWork{246, 113, RowSharing::kGroups}, kGatTrainingWork{314, 148, RowSharing::kGroups},
    kGatBackwardWork{276, 143, RowSharing::kGroups};
// Forward, to destinations, to sources.
constexpr RowWork kDotAttentionWork[] = {{368, 130}, {392, 162}, {345, 211}};
// Dot attention on tensor cores where edges add a bias, or 16 columns in keys and values: forward and to destinations,
// of heads of at most 64 and 128 elements. A batch is 16 edges of one head.
constexpr RowWork kDotTensorBiasWork[][2] = {{{281, 171}, {365, 241}}, {{291, 213}, {344, 308}}};
constexpr RowWork kDotTensorColumnsWork[][2] = {{{431, 210}, {589, 286}}, {{440, 252}, {568, 354}}};
// Times as many per batch if a head ends within a block, since loads are conditional then.
constexpr double kConditionalTensorLoads = 2;
// Where edges add to logits or values: with a bias (rows of edges take more), or with 16 columns in keys and values.
constexpr RowWork kDotBiasWork[] = {{353, 200}, {300, 305}, {240, 121}};
constexpr RowWork kDotColumnsWork[] = {{411, 248}, {495, 335}, {240, 121}};
constexpr RowWork kGatv2Work[] = {{391, 239}, {532, 321}, {404, 243}};
// The same to destinations and to sources, with records of edges.
constexpr RowWork kRecordedGatv2Work[] = {{567, 368}, {411, 199}};
constexpr RowWork kGatv2BiasWork[] = {{392, 257}, {584, 422}, kRecordedGatv2Work[1]};

// How warps walk rows.
struct RowWalk {
  int64_t num_rows;
  int64_t num_edges;
  int64_t batch_edges;         // edges of a row that are in flight together
  int64_t rows_at_once = 1;    // rows of a warp that have batches at the same time
  int64_t batch_accesses = 4;  // of a lane, in a batch
  bool across_rows = false;    // batches do not end with a row
};

// Instructions of all warps, for one slice. Degrees are taken to be spread evenly around their average, so that the
// last batch of a row is half full on average; every row has one batch at least. Across rows all batches are full.
inline double instructions_of(const RowWork& work, const RowWalk& walk) {
  if (walk.num_rows == 0) return 0;
  const auto rows = static_cast<double>(walk.num_rows);
  const double degree = static_cast<double>(walk.num_edges) / rows, size = static_cast<double>(walk.batch_edges);
  const double batches = walk.across_rows ? degree / size : std::max(1., degree / size + (1 - 1 / size) / 2);
  const double batch = work.batch * static_cast<double>(walk.batch_accesses) / kBatchAccesses;
  return rows / static_cast<double>(walk.rows_at_once) * (work.row + batches * batch);
}

}  // namespace halfgnn::cuda
