// Instructions that warps execute: the third bound of every kernel, beside the L2 cache and device memory.
//
// The numbers are of sm_90, for fp16, int32 ids and accesses of 16 bytes; those of other types and architectures differ
// by less than a fifth. They are counted in machine code, along the path that a warp takes.
#pragma once

#include <algorithm>
#include <cstdint>

namespace halfgnn::cuda {

struct RowWork {
  double row;    // of a warp, for the rows that it walks at the same time: all but batches
  double batch;  // of a warp, for a batch of kBatchAccesses accesses of kAccessBytes per lane: 2 KiB
};
constexpr double kBatchAccesses = 4;
constexpr int64_t kAccessBytes = 16;

// With a row of 7 edges of 1 x 128 these are 181, 200, 305 and 394 instructions per row.
constexpr RowWork kSumWork{182, 90};  // without weights
constexpr RowWork kWeightedSumWork{184, 108};
constexpr RowWork kExtremumWork{314, 148};
constexpr RowWork kMulBackwardWork{144, 250};
// Edge-wise: what is done once for 32 edges is part of the batches.
constexpr RowWork kDotWork{0, 150};
// GAT: the forward without a backward, with one, and the backward. 226, 304 and 339 per row of 7 edges.
constexpr RowWork kGatWork{142, 84}, kGatTrainingWork{196, 108}, kGatBackwardWork{235, 104};
// The weight of a GAT edge in one head: 100 for 32 of them, less what a short row's window costs in `row`.
constexpr double kPairWork = 100. / 32;
// Forward, to destinations, to sources. `row`: guesses.
constexpr RowWork kDotAttentionWork[] = {{300, 215}, {300, 268}, {300, 343}};
// Dot attention on tensor cores, by 64 elements of a head: a batch is 16 edges of one head. `row`: guesses.
constexpr RowWork kDotTensorWork[][3] = {{{400, 128}, {430, 195}, {460, 257}}, {{400, 166}, {430, 233}, {460, 320}}};
constexpr RowWork kGatv2Work[] = {{300, 408}, {300, 495}, {300, 391}};

// How warps walk rows.
struct RowWalk {
  int64_t num_rows;  // edge-wise kernels: 1
  int64_t num_edges;
  int64_t batch_edges;         // edges of a row that are in flight together
  int64_t rows_at_once = 1;    // rows of a warp that have batches at the same time
  int64_t batch_accesses = 4;  // of a lane, in a batch
};

// Instructions of all warps, for one slice. Degrees are taken to be spread evenly around their average, so that the
// last batch of a row is half full on average; every row has one batch at least.
inline double instructions_of(const RowWork& work, const RowWalk& walk) {
  if (walk.num_rows == 0) return 0;
  const auto rows = static_cast<double>(walk.num_rows);
  const double degree = static_cast<double>(walk.num_edges) / rows, size = static_cast<double>(walk.batch_edges);
  const double batches = std::max(1., degree / size + (1 - 1 / size) / 2);
  const double batch = work.batch * static_cast<double>(walk.batch_accesses) / kBatchAccesses;
  return rows / static_cast<double>(walk.rows_at_once) * (work.row + batches * batch);
}

}  // namespace halfgnn::cuda
