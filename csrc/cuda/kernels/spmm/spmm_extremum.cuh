// The kernel behind spmm for the maximum or minimum of copies.
#pragma once

#include <cmath>

#include "spmm_launch.h"

namespace halfgnn::cuda {

// What a lane does (TeamWalk).
template <class Config>
struct ExtremumLane {
  static constexpr int kRepeat = Config::kRepeat;
  static constexpr int kVector = Config::kVector;
  using Row = Fragment<typename Config::Element, kVector>;

  const ExtremumKernelArgs& args;
  const LaneSlice<Config> slice;
  const LaneSource<kRepeat> feat;
  float best[kRepeat][kVector];
  uint32_t position[kRepeat][kVector];

  __device__ static constexpr int passes() { return 1; }
  __device__ uint32_t load(uint32_t position) const { return args.gather.feat_rows.id(position); }

  // Every group starts with its first edge: an element that is -inf on all of them has that winner.
  __device__ void start(const Team& team, const TeamRow& row, uint32_t, int) {
    const uint32_t first = team.group < row.num_edges ? row.begin + static_cast<uint32_t>(team.group) : kNoPosition;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        best[r][i] = -INFINITY;
        position[r][i] = first;
      }
    }
  }

  __device__ void add(const Team& team, const TeamRow& row, const Lengths& lengths, uint32_t ids, int chunk) {
    for_each_batch<Config::kUnroll>(team, lengths, chunk, [&](auto edges, auto full, int start) {
      look_at_batch<decltype(edges)::value, decltype(full)::value>(team, row, ids, start, chunk);
    });
  }

  __device__ void finish(const Team& team, const TeamRow& row, bool is_piece) {
    best_of_groups(team);
    store(row, row.exists() && team.group == 0, is_piece);
  }

 private:
  // Looks at kEdges edges of every group, in ascending order, so that a later one wins only if it is greater. If the
  // batch is not kFull, places past the last edge look at that edge again, which changes nothing for the team. Without
  // edges they find kNoPosition.
  template <int kEdges, bool kFull>
  __device__ void look_at_batch(const Team& team, const TeamRow& row, uint32_t ids, int start, int chunk) {
    const uint32_t flip = args.result.negate ? kSignBits<typename Config::Element> : 0;
    Row rows[kEdges][kRepeat];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + start + u * team.num_groups;
      const char* row = feat.of_row(__shfl_sync(kFullMask, ids, source), args.gather.row_bytes);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) rows[u][r] = Row::load(feat.at(row, r));
    }
    const int first = chunk + start + team.group, last = row.num_edges - 1;
    const uint32_t begin = (kFull || last >= 0 ? row.begin : 0) + static_cast<uint32_t>(first);
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int next = u * team.num_groups;
      const uint32_t at = begin + static_cast<uint32_t>(kFull ? next : min(next, last - first));
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        flip_bits(flip, rows[u][r].word);
        float values[kVector];
        rows[u][r].widen(values);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const bool wins = !(values[i] <= best[r][i]) && best[r][i] == best[r][i];
          best[r][i] = wins ? values[i] : best[r][i];
          position[r][i] = wins ? at : position[r][i];
        }
      }
    }
  }

  // Every group ends up with the best of the team.
  __device__ void best_of_groups(const Team& team) {
    for (int distance = slice.stride; distance < team.size; distance *= 2) {
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float value = __shfl_xor_sync(kFullMask, best[r][i], distance);
          const uint32_t other = __shfl_xor_sync(kFullMask, position[r][i], distance);
          take_better(value, other, best[r][i], position[r][i]);
        }
      }
    }
  }

  __device__ void store(const TeamRow& row, bool writes, bool is_piece) {
    const int64_t first = (int64_t{row.line} * args.gather.num_vectors + slice.first) * kVector;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      if (!writes || !slice.has(r, args.gather)) continue;
      const int64_t i = first + r * slice.stride * kVector;
      if (is_piece) {
        store_rounded(args.partial + i, best[r]);
        store_words(args.partial_position + i, position[r]);
      } else {
        store_extrema(args.result, i, row.num_edges > 0, best[r], position[r]);
      }
    }
  }
};

template <class Config>
__global__ void __launch_bounds__(kGatherThreads, kGatherMinBlocks)
    spmm_extremum_kernel(const ExtremumKernelArgs args) {
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  const LaneSlice<Config> slice(args.gather, lane);
  ExtremumLane<Config> work{args, slice, feat_source(args.gather, slice), {}, {}};
  TeamWalk(args.gather.units, lane, work).walk(args.gather.unit());
}

template <class Config>
cudaError_t launch_extremum(const SpmmArgs& args, ExtremumKernelArgs kernel_args, const GatherShape& shape,
                            const Launch& launch) {
  const GatherPlan plan = plan_gather<Config>(args.topology, shape);
  kernel_args.gather = plan.gather;
  kernel_args.gather.feat_rows = shape.by_edge ? edge_ids_of(args.topology) : indices_of(args.topology);
  return cuda::launch(spmm_extremum_kernel<Config>, plan.blocks, plan.threads, launch.stream, kernel_args);
}

// For an operand of type T.
template <typename T>
cudaError_t spmm_extremum_of(const SpmmArgs& args, const ExtremumKernelArgs& kernel_args, const GatherShape& shape,
                             const Launch& launch) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  const int64_t arg_bytes = args.topology.is_int64 ? 8 : 4;
  const auto fits = [&](int count) {
    const int64_t arg_alignment = arg_bytes * count < kMaxAccessBytes ? arg_bytes * count : kMaxAccessBytes;
    return args.out_len % count == 0 && are_aligned(count * static_cast<int64_t>(sizeof(T)), shape.feat) &&
           are_aligned(store_alignment(args.out_type, count), args.out) && are_aligned(arg_alignment, args.arg);
  };
  if (fits(widest)) return launch_extremum<GatherConfig<T, widest, 1>>(args, kernel_args, shape, launch);
  if constexpr (widest == 8) {
    if (fits(2)) return launch_extremum<GatherConfig<T, 2, 4>>(args, kernel_args, shape, launch);
  }
  return launch_extremum<GatherConfig<T, 1, 4>>(args, kernel_args, shape, launch);
}

}  // namespace halfgnn::cuda
