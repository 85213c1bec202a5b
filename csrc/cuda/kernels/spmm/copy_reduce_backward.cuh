// The kernel behind copy_reduce_backward. Include only where it is instantiated (copy_reduce_backward_<type>.cu).
#pragma once

#include "../core/running_sum.cuh"
#include "copy_reduce_launch.h"

namespace halfgnn::cuda {

// Edges that a lane has in flight, of up to six rows each; of one extreme alone, of whose two rows few are read where
// there are marks.
template <class Config, bool kAlone>
constexpr int kReduceGradientUnroll = kAlone && Config::kRepeat == 1 ? 8 : 2;
constexpr uint32_t kNoEdge = 0x80000000u;  // the winner of nothing: ids have 31 bits, and -1 is no edge's

// The rows of an array that are gathered, if it is there.
template <class Config, typename T>
struct GatheredRows {
  using Row = Fragment<T, Config::kVector>;

  const LaneSource<Config::kRepeat> source;
  const bool exists;

  __device__ GatheredRows(const void* data, const Gather& gather, const LaneSlice<Config>& slice)
      : source(source_of<Config>(data, Row::kBytes, gather, slice)), exists(data != nullptr) {}

  // is_read(r): whether the lane reads its r-th vector. It is zeros otherwise.
  template <class IsRead>
  __device__ void load(uint32_t row, uint32_t row_bytes, Row (&to)[Config::kRepeat], const IsRead& is_read) const {
    const char* of_row = source.of_row(row, row_bytes);
#pragma unroll
    for (int r = 0; r < Config::kRepeat; ++r) to[r] = exists && is_read(r) ? Row::load(source.at(of_row, r)) : Row{};
  }
};

// What a lane holds of an edge.
struct WinnerIds {
  uint32_t column;
  uint32_t edge;
  uint32_t marks;  // 1 where there are none

  __device__ WinnerIds from(int lane) const {
    return {__shfl_sync(kFullMask, column, lane), __shfl_sync(kFullMask, edge, lane),
            __shfl_sync(kFullMask, marks, lane)};
  }
};

// The n-th bit that is set, from 0; the last bit of the mask if there are not so many.
inline __device__ int set_bit(unsigned int mask, int n) {
  int at = 0;
#pragma unroll
  for (int width = kWarpSize / 2; width > 0; width /= 2) {
    const int below = __popc(mask >> at & ((1u << width) - 1));
    const bool is_above = n >= below;
    n -= is_above ? below : 0;
    at += is_above ? width : 0;
  }
  return at;
}

// What a lane does (TeamWalk). kAlone: there are a maximum's gradient and winners, and nothing else.
template <class Config, bool kAlone>
struct ReduceGradientLane {
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;
  using Grad = Fragment<typename Config::Element, kVector>;
  using Words = Fragment<float, kVector>;  // of records, and the bits of ids

  const CopyReduceBackwardKernelArgs& args;
  const LaneSlice<Config> slice;
  const GatheredRows<Config, float> level, slope, arg_max, arg_min;
  const GatheredRows<Config, typename Config::Element> max, min;
  RunningSum<(kAlone ? 1 : 2) * kRepeat, kVector, kGatherThreads> sum;  // of levels and winners, then of slopes
  uint32_t own_row;
  uint32_t own_marks = 0;  // of the lane's columns: a byte for each of its vectors

  __device__ ReduceGradientLane(const CopyReduceBackwardKernelArgs& kernel_args, int lane)
      : args(kernel_args),
        slice(args.gather, lane),
        level(args.level, args.gather, slice),
        slope(args.slope, args.gather, slice),
        arg_max(args.arg_max, args.gather, slice),
        arg_min(args.arg_min, args.gather, slice),
        max(args.max, args.gather, slice),
        min(args.min, args.gather, slice) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      const int64_t column = int64_t{slice.vector(r, args.gather)} * kVector;
      own_marks |= (args.marks.of_edge ? args.marks.bit(column) : 1) << (r * WinnerMarks::kBits);
    }
  }

  __device__ static constexpr int passes() { return 1; }
  __device__ WinnerIds load(uint32_t position) const {
    return {args.gather.feat_rows.id(position), args.edge_ids.id(position), 1};
  }
  __device__ void start(const Team&, const TeamRow&, uint32_t row, int) {
    sum.clear();
    own_row = row;
  }

  __device__ void add(const Team& team, const TeamRow& row, const Lengths& lengths, const WinnerIds& ids, int chunk) {
    // A batch may be longer than what a team of groups of four lanes holds: past that, places are other teams'.
    const int left = row.num_edges - chunk;
    Chunk held{lengths, ids, chunk, left < team.size ? left : team.size};
    if (args.marks.of_edge != nullptr) {
      held.ids.marks = __ldg(args.marks.of_edge + ids.edge);
      if (kAlone || args.level == nullptr) held = winners_of(team, held);
    }
    for_each_batch<kReduceGradientUnroll<Config, kAlone>>(
        team, held.lengths, held.chunk, [&](auto edges, auto full, int start) {
          add_batch<decltype(edges)::value, decltype(full)::value>(team, held.ids, start, held.left);
        });
    if (((chunk + team.size) & (kRun * team.num_groups - 1)) == 0) sum.end_run();
  }

  __device__ void finish(const Team& team, const TeamRow& row, bool is_piece) {
    sum.finish();
    sum.sum_over_lanes(slice.stride, team.size);  // over the groups
    const bool writes = row.exists() && team.group == 0;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      if (!writes || !slice.has(r, args.gather)) continue;
      const int64_t column = int64_t{slice.first + r * slice.stride} * kVector;
      const int64_t len = int64_t{args.gather.num_vectors} * kVector;
      if (!kAlone && args.feat != nullptr) add_slopes(r, int64_t{own_row} * len + column);
      const int64_t at = int64_t{row.line} * len + column;
      if (is_piece) {
        store_rounded(args.partial + at, sum.run[r]);
      } else {
        store_rounded_as(args.grad_feat, args.type, at, sum.run[r]);
      }
    }
  }

 private:
  struct Chunk {
    Lengths lengths;
    WinnerIds ids;
    int chunk;
    int left;  // edges that the team holds ids of
  };

  // Those edges of a chunk that won something, in the first lanes of their team.
  __device__ static Chunk winners_of(const Team& team, const Chunk& of) {
    const int first = team.number * team.size;
    const unsigned int won = __ballot_sync(kFullMask, team.lane < of.left && of.ids.marks != 0) >> first;
    const unsigned int of_team = won & (kFullMask >> (kWarpSize - team.size));
    const int count = __popc(of_team);
    return {Lengths(count), of.ids.from((first + set_bit(of_team, team.lane)) & (kWarpSize - 1)), 0, count};
  }

  // Adds what kEdges edges of every group pass on, those at `start` and after of a chunk of which the team has `left`
  // edges. All loads are issued before the first sum. If the batch is not kFull, a place past the last edge reads rows
  // that are there, and adds 0.
  template <int kEdges, bool kFull>
  __device__ void add_batch(const Team& team, const WinnerIds& ids, int start, int left) {
    constexpr int kOthers = kAlone ? 1 : kEdges;
    Words levels[kOthers][kRepeat], slopes[kOthers][kRepeat], largest[kEdges][kRepeat], smallest[kOthers][kRepeat];
    Grad of_max[kEdges][kRepeat], of_min[kOthers][kRepeat];
    uint32_t edge[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + start + u * team.num_groups;
      const WinnerIds of_edge = ids.from(source);
      const uint32_t node = of_edge.column;
      edge[u] = of_edge.edge;
      const auto has_won = [&](int r) { return (of_edge.marks & own_marks >> (r * WinnerMarks::kBits)) != 0; };
      max.load(node, args.grad_bytes, of_max[u], has_won);
      arg_max.load(node, args.arg_bytes, largest[u], has_won);
      if constexpr (!kAlone) {
        const auto always = [](int) { return true; };
        level.load(node, args.record_bytes, levels[u], always);
        slope.load(node, args.record_bytes, slopes[u], always);
        min.load(node, args.grad_bytes, of_min[u], has_won);
        arg_min.load(node, args.arg_bytes, smallest[u], has_won);
      }
    }
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const bool keep = kFull || start + u * team.num_groups + team.group < left;
      if (!kFull && !keep) edge[u] = kNoEdge;
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        float total[kVector] = {};
        if constexpr (!kAlone) {
          if constexpr (!kFull) {
            levels[u][r].keep_if(keep);
            slopes[u][r].keep_if(keep);
          }
          slopes[u][r].add_to(sum.run[kRepeat + r]);
          levels[u][r].widen(total);
          add_won(edge[u], smallest[u][r], of_min[u][r], total);
        }
        add_won(edge[u], largest[u][r], of_max[u][r], total);
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum.run[r][i] += total[i];
      }
    }
  }

  // The gradients of those columns whose winner is the edge.
  __device__ static void add_won(uint32_t edge, const Words& winners, const Grad& grad, float (&to)[kVector]) {
    float ids[kVector], values[kVector];
    winners.widen(ids);
    grad.widen(values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) to[i] += __float_as_uint(ids[i]) == edge ? values[i] : 0.f;
  }

  // Times the row's own elements, those from `at` on.
  __device__ void add_slopes(int r, int64_t at) {
    float x[kVector];
    with_type(args.type, [&](auto t) {
      using T = TypeOf<decltype(t)>;
      Fragment<T, kVector>::load(static_cast<const T*>(args.feat) + at).widen(x);
    });
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum.run[r][i] = fmaf(x[i], sum.run[kRepeat + r][i], sum.run[r][i]);
  }
};

// Registers of up to six rows of two edges in flight: 96, so 20 warps. Narrow accesses have more addresses.
template <class Config, bool kAlone>
constexpr int kReduceGradientMinBlocks = Config::kRepeat == 1 ? 5
                                         : kAlone             ? 4
                                                              : 3;

template <class Config, bool kAlone>
__global__ void __launch_bounds__(kGatherThreads, kReduceGradientMinBlocks<Config, kAlone>)
    copy_reduce_backward_kernel(const CopyReduceBackwardKernelArgs args) {
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  ReduceGradientLane<Config, kAlone> work(args, lane);
  TeamWalk(args.gather.units, lane, work).walk(args.gather.unit());
}

template <class Config, bool kAlone>
cudaError_t launch_copy_reduce_backward(const CopyReduceBackwardArgs& args, CopyReduceBackwardKernelArgs kernel_args,
                                        const GatherShape& shape, const Launch& launch) {
  const auto vector_bytes = static_cast<int>(shape.row_bytes / args.dim * Config::kVector);  // of all arrays
  const GatherPlan plan =
      plan_gather(args.topology, shape, vector_bytes, Config::kRepeat, kReduceGradientUnroll<Config, kAlone>);
  kernel_args.gather = plan.gather;
  kernel_args.gather.feat_rows = indices_of(args.topology);
  return cuda::launch(copy_reduce_backward_kernel<Config, kAlone>, plan.blocks, plan.threads, launch.stream,
                      kernel_args);
}

// A minimum alone is a maximum: only its winners count.
template <class Config>
cudaError_t launch_copy_reduce_backward(const CopyReduceBackwardArgs& args, CopyReduceBackwardKernelArgs kernel_args,
                                        const GatherShape& shape, const Launch& launch) {
  if (kernel_args.level != nullptr || (args.max != nullptr && args.min != nullptr)) {
    return launch_copy_reduce_backward<Config, false>(args, kernel_args, shape, launch);
  }
  if (args.max == nullptr) {
    kernel_args.max = args.min;
    kernel_args.arg_max = args.arg_min;
  }
  return launch_copy_reduce_backward<Config, true>(args, kernel_args, shape, launch);
}

template <typename G>
cudaError_t copy_reduce_backward_of(const CopyReduceBackwardArgs& args, const CopyReduceBackwardKernelArgs& kernel_args,
                                    const GatherShape& shape, const Launch& launch) {
  const auto fits = [&](int64_t count) {
    const auto whole = static_cast<int>(count);
    return args.dim % count == 0 && are_aligned(store_alignment(args.grad_type, whole), args.max, args.min) &&
           are_aligned(store_alignment(DType::kFloat, whole), args.arg_max, args.arg_min) &&
           are_aligned(store_alignment(args.type, whole), args.feat, args.grad_feat);
  };
  return with_fitting_vector<sizeof(float), false>(fits, [&](auto vector, auto repeat) {
    using Config = GatherConfig<G, decltype(vector)::value, decltype(repeat)::value>;
    return launch_copy_reduce_backward<Config>(args, kernel_args, shape, launch);
  });
}

}  // namespace halfgnn::cuda
