// What the lanes of kernels that sum up over the edges of a row have in common, for TeamWalk; and how such a kernel is
// launched.
#pragma once

#include "../core/launch.cuh"
#include "../core/running_sum.cuh"
#include "spmm.cuh"

namespace halfgnn::cuda {

inline __device__ int lane_of_warp() { return static_cast<int>(threadIdx.x & (kWarpSize - 1)); }

// With kSums sums of each vector.
template <class Config, int kSums>
struct RowLane {
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;

  const LaneSlice<Config> slice;
  const LaneSource<kRepeat> feat;
  RunningSum<kSums * kRepeat, kVector, kGatherThreads> sum;

  explicit __device__ RowLane(const Gather& gather) : slice(gather, lane_of_warp()), feat(feat_source(gather, slice)) {}

  __device__ static constexpr int passes() { return 1; }

 protected:
  // Calls add(number of edges of every group, whether no team ends in them, first edge) for the edges of a chunk.
  template <class Add>
  __device__ void add_chunk(const Team& team, const Lengths& lengths, int chunk, const Add& add) {
    for_each_batch<Config::kUnroll>(team, lengths, chunk, add);
    if (((chunk + team.size) & (kRun * team.num_groups - 1)) == 0) sum.end_run();
  }
  // Sums up over the groups, and returns whether the lane writes.
  __device__ bool finish_sums(const Team& team, const TeamRow& row) {
    sum.finish();
    sum.sum_over_lanes(slice.stride, team.size);
    return row.exists() && team.group == 0;
  }
};

template <class Lane, class Args>
__device__ void walk_unit(const Args& args) {
  Lane work(args);
  TeamWalk(args.gather.units, lane_of_warp(), work).walk(args.gather.unit());
}

// Over the rows of a topology, which gather rows of its columns.
template <class Config, class Args>
cudaError_t launch_rows(void (*kernel)(Args), const Topology& topology, const GatherShape& shape, Args args,
                        const Launch& launch) {
  const GatherPlan plan = plan_gather<Config>(topology, shape);
  args.gather = plan.gather;
  args.gather.feat_rows = indices_of(topology);
  return cuda::launch(kernel, plan.blocks, plan.threads, launch.stream, args);
}

}  // namespace halfgnn::cuda
