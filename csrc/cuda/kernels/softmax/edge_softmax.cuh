// The kernels behind edge_softmax.h. Include only where they are instantiated (edge_softmax_<type>.cu).
//
// Method. A row whose items fit in its team's registers is read once. Teams are sized for the average row; what does
// not fit them goes to the warp, what a warp would load too often to the block. Rows that do not fit are read twice,
// the second time from the caches, with the running maximum of Milakov and Gimelshein ("Online normalizer calculation
// for softmax", 2018). Pieces of long rows (rows.cuh) leave their sums in the workspace, and a second kernel writes
// their results.
#pragma once

#include "softmax_lane.cuh"

namespace halfgnn::cuda {

// How often a warp loads what it holds, for a row: longer ones are the block's. Its four warps each take as long to add
// up their sums as one warp does, and wait for each other twice, so that a row of few loads takes one warp half of the
// instructions (docs/cuda_kernels.md).
constexpr int kWarpLoads = 4;

// The short rows of a block: first one per team, then those that do not fit their team, one by one: by a warp those
// that it loads in few steps, the rest by the block.
template <class Config>
class SoftmaxRows {
 public:
  // `first_row`: of the block.
  __device__ SoftmaxRows(const SoftmaxProblem& problem, int64_t first_row, int thread)
      : problem_(problem), first_row_(first_row), thread_(thread), owner_(thread / kWarpSize), waiting_(0) {}

  // The row of the lane's team; no items if there is none, or if the row waits. The whole warp takes part.
  __device__ SoftmaxItems of_team(const SoftmaxTeam& team) {
    const Rows& rows = problem_.rows;
    const int64_t row = first_row_ + (thread_ >> team.log2_size);
    int64_t begin = 0, end = 0;
    if (row < rows.num_rows) {
      begin = rows.indptr.offset(row);
      end = rows.indptr.offset(row + 1);
      if (rows.is_long(end - begin)) end = begin;
    }
    const SoftmaxItems items = items_of<Config>(begin, end);
    const bool leads = (thread_ & ((1 << team.log2_size) - 1)) == 0;
    const bool waits = items.count > capacity(team);
    const bool waits_for_block = items.count > kWarpLoads * capacity(warp_team());
    waiting_ = __ballot_sync(kFullMask, leads && waits && !waits_for_block);
    const uint32_t for_block = __ballot_sync(kFullMask, leads && waits_for_block);
    if (thread_ % kWarpSize == 0) rows_for_block()[owner_] = for_block;
    return waits ? SoftmaxItems{} : items;
  }

  // The next row that waits, and the team that it waits for; false if none is left. The whole block takes part.
  __device__ bool next(SoftmaxTeam& team, SoftmaxItems& items) {
    if (waiting_ == 0) {
      if (!team.is_block()) {
        __syncthreads();
        team = SoftmaxTeam::block(problem_.log2_lanes, thread_);
        owner_ = -1;
      }
      while (waiting_ == 0 && ++owner_ < kSoftmaxWarps) waiting_ = rows_for_block()[owner_];
      if (waiting_ == 0) return false;
    } else if (!team.is_block()) {
      team = warp_team();
    }
    const int row_in_block = (owner_ * kWarpSize + __ffs(waiting_) - 1) >> problem_.log2_team;
    waiting_ &= waiting_ - 1;
    const Ids& indptr = problem_.rows.indptr;
    items = items_of<Config>(indptr.offset(first_row_ + row_in_block), indptr.offset(first_row_ + row_in_block + 1));
    return true;
  }

 private:
  static __device__ int capacity(const SoftmaxTeam& team) { return SoftmaxLane<Config>::capacity(team); }
  __device__ SoftmaxTeam warp_team() const { return SoftmaxTeam::make(kLog2Warp, problem_.log2_lanes, thread_); }
  static __device__ uint32_t* rows_for_block() {
    __shared__ uint32_t rows[kSoftmaxWarps];
    return rows;
  }

  const SoftmaxProblem& problem_;
  int64_t first_row_;
  int thread_;
  int owner_;         // the warp whose rows are waiting
  uint32_t waiting_;  // a bit per row: that of its team's first lane
};

// Whole rows, and the sums of pieces. A block has a slot, or 32 / team rows for each warp.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) softmax_rows(const SoftmaxProblem problem) {
  const int thread = threadIdx.x;
  const int64_t unit = blockIdx.x / problem.num_slices, num_slots = problem.rows.num_slots;
  const bool is_slot = unit < num_slots;
  SoftmaxLane<Config> lane(problem, thread, blockIdx.x % problem.num_slices);
  SoftmaxRows<Config> rows(problem, (unit - num_slots) * (kSoftmaxWarps << (kLog2Warp - problem.log2_team)), thread);
  SoftmaxTeam team = SoftmaxTeam::make(problem.log2_team, problem.log2_lanes, thread);
  SoftmaxItems items;
  if (is_slot) {
    Piece piece;
    if (!find_piece(problem.rows, unit, thread % kWarpSize, piece)) return;
    items = items_of<Config>(piece.begin, piece.end);
    team = SoftmaxTeam::block(problem.log2_lanes, thread);
  } else {
    items = rows.of_team(team);
  }
  // If all rows of a warp's teams are empty or wait, there is nothing to do before the first that waits.
  bool has_items = is_slot || __any_sync(kFullMask, items.count > 0);
  for (; has_items || rows.next(team, items); has_items = false) {
    float first[Config::kColumns], second[Config::kColumns];
    lane.accumulate(items, team, first, second);
    if (is_slot) return lane.put_partial(unit, first, second);
    lane.finish(items, team, lane.holds(items, team), first, second);
  }
}

// The results of pieces. Every block adds up the sums of its row's pieces for itself: there are few.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) softmax_pieces(const SoftmaxProblem problem) {
  const Rows& rows = problem.rows;
  const int thread = threadIdx.x;
  SoftmaxLane<Config> lane(problem, thread, blockIdx.x % problem.num_slices);
  const SoftmaxTeam block = SoftmaxTeam::block(problem.log2_lanes, thread);
  Piece piece;
  if (!find_piece(rows, blockIdx.x / problem.num_slices, thread % kWarpSize, piece)) return;
  const int64_t begin = rows.indptr.offset(piece.row), end = rows.indptr.offset(piece.row + 1);
  float first[Config::kColumns], second[Config::kColumns];
  lane.get_partials(long_row_of(rows, piece.row, begin, end), block, first, second);
  lane.finish(items_of<Config>(piece.begin, piece.end), block, false, first, second);
}

template <class Config>
cudaError_t launch_softmax(const SoftmaxProblem& problem, int64_t row_blocks, cudaStream_t stream) {
  const int64_t slots = problem.rows.num_slots;
  const cudaError_t status =
      launch(softmax_rows<Config>, (slots + row_blocks) * problem.num_slices, Config::kThreads, stream, problem);
  if (status != cudaSuccess) return status;
  return launch(softmax_pieces<Config>, slots * problem.num_slices, Config::kThreads, stream, problem);
}

template <typename T, bool kBackward>
cudaError_t launch_softmax(const SoftmaxProblem& problem, const SoftmaxShape& shape, cudaStream_t stream) {
  constexpr int kFull = kMaxAccessBytes / static_cast<int>(sizeof(T));
  const auto run = [&](auto config) { return launch_softmax<decltype(config)>(problem, shape.row_blocks, stream); };
  if (shape.flat) {
    if (problem.columns == 1) return run(SoftmaxConfig<T, kFull, 1, kBackward>{});
    if (problem.columns == 2) return run(SoftmaxConfig<T, kFull, 2, kBackward>{});
    if constexpr (kFull > 4) {
      if (problem.columns == 4) return run(SoftmaxConfig<T, kFull, 4, kBackward>{});
    }
    return cudaErrorInvalidValue;
  }
  if (shape.vector == kFull) return run(SoftmaxConfig<T, kFull, 0, kBackward>{});
  if constexpr (kFull > 4) {
    if (shape.vector == 4) return run(SoftmaxConfig<T, 4, 0, kBackward>{});
  }
  return run(SoftmaxConfig<T, 1, 0, kBackward>{});
}

}  // namespace halfgnn::cuda
