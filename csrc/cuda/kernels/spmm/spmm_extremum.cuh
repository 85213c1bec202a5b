// The kernel behind spmm for the maximum or minimum of copies.
#pragma once

#include "extrema.cuh"
#include "spmm_launch.h"

namespace halfgnn::cuda {

// What a lane does (TeamWalk). Of its extrema only the largest are used: the others cost nothing.
template <class Config>
struct ExtremumLane {
  static constexpr int kRepeat = Config::kRepeat;
  static constexpr int kVector = Config::kVector;
  using T = typename Config::Element;
  using Row = Fragment<T, kVector>;

  const ExtremumKernelArgs& args;
  const LaneSlice<Config> slice;
  const LaneSource<kRepeat> feat;
  Extrema<T, kVector> extrema[kRepeat];
  NanTrace<T, kVector> nans[kRepeat];

  __device__ static constexpr int passes() { return 1; }
  __device__ uint32_t load(uint32_t position) const { return id_at(args.gather.feat_rows, position); }

  // Every group starts with its first edge: an element that is -inf on all of them has that winner.
  __device__ void start(const Team& team, const TeamRow& row, uint32_t, int) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      extrema[r].clear(team.group < row.num_edges ? static_cast<uint32_t>(team.group) : kNoPosition);
      nans[r].clear();
    }
  }

  __device__ void add(const Team& team, const TeamRow& row, const Lengths& lengths, uint32_t ids, int chunk) {
    add_chunk(team, row, lengths, ids, chunk);
  }
  __device__ void end_chunk(const Team&, int) {}
  __device__ void add_chunk(const Team& team, const TeamRow& row, const Lengths& lengths, uint32_t ids, int chunk) {
    for_each_batch_of<Config, true>(team, lengths, chunk, [&](auto edges, auto full, int start) {
      look_at_batch<decltype(edges)::value, decltype(full)::value>(team, row, ids, start, chunk);
    });
  }

  __device__ void finish(const Team& team, const TeamRow& row, bool is_piece) {
    const bool writes = row.exists() && team.group == 0;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      typename Extrema<T, kVector>::Winners winners = extrema[r].winners();
      if (__any_sync(kFullMask, nans[r].may_have_nan()))
        find_nans<Row, kVector>(args.gather, feat, team, row, r, winners);
      for (int distance = slice.stride; distance < team.size; distance *= 2) winners.join(distance);
      if (writes && slice.has(r, args.gather)) store(row, r, is_piece, winners);
    }
  }

  // The best of what pieces left at the slots of a row, or of a part of it that is left at the first one.
  __device__ void join(int lane, const LongRow& slots, bool is_row) const {
    constexpr int kColumns = kJoinedColumns<Config>, kTogether = 2;  // slots that a lane has in flight
    using Values = Fragment<float, kColumns>;
    for_each_joined_column<Config>(args.gather, lane, [&](int64_t column, int64_t len) {
      float best[kColumns];
      uint32_t position[kColumns];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        best[i] = -INFINITY;
        position[i] = kNoPosition;
      }
      // Positions are loaded as bits of floats, which nothing rounds.
      Values values[kTogether], positions[kTogether];
      for_each_slot<kTogether>(
          slots, CombineTeam{0, 1, lane},
          [&](int u, int64_t slot) {
            const int64_t at = slot * len + column;
            values[u] = Values::load_streaming(args.partial + at);
            positions[u] = Values::load_streaming(reinterpret_cast<const float*>(args.partial_position) + at);
          },
          [&](int u) {
            float widened[kColumns], bits[kColumns];
            values[u].widen(widened);
            positions[u].widen(bits);
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
              take_better(widened[i], __float_as_uint(bits[i]), best[i], position[i]);
            }
          });
      if (is_row) return store_extrema(args.result, int64_t{slots.row} * len + column, true, best, position);
      const int64_t at = slots.slot(0) * len + column;
      store_rounded(args.partial + at, best);
      store_words(args.partial_position + at, position);
    });
  }

 private:
  // Looks at kEdges edges of every group, in ascending order, so that a later one wins only if it is greater. If the
  // batch is not kFull, places past the last edge look at that edge again, which changes nothing for the team.
  template <int kEdges, bool kFull>
  __device__ void look_at_batch(const Team& team, const TeamRow& row, uint32_t ids, int start, int chunk) {
    const uint32_t flip = args.result.negate ? kSignBits<typename Config::Element> : 0;
    Row rows[kEdges][kRepeat];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + start + u * team.num_groups;
      const char* row = row_of(feat.first, __shfl_sync(kFullMask, ids, source), args.gather.row_bytes);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) rows[u][r] = Row::load(feat.at(row, r));
    }
    const int first = chunk + start + team.group, last = row.num_edges - 1;
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int place = first + u * team.num_groups;
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        flip_bits(flip, rows[u][r].word);
        extrema[r].take(rows[u][r], static_cast<uint32_t>(kFull ? place : min(place, last)));
        nans[r].take(rows[u][r]);
      }
    }
  }

  template <class Winners>
  __device__ void store(const TeamRow& row, int r, bool is_piece, const Winners& winners) const {
    const int64_t at = (int64_t{row.line} * args.gather.num_vectors + slice.first + r * slice.stride) * kVector;
    float best[kVector];
    uint32_t position[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const Winner winner = winners.largest(i);
      best[i] = winner.value;
      position[i] = row.num_edges > 0 ? row.begin + winner.offset : kNoPosition;
    }
    if (is_piece) {
      store_rounded(args.partial + at, best);
      store_words(args.partial_position + at, position);
    } else {
      store_extrema(args.result, at, row.num_edges > 0, best, position);
    }
  }
};

template <class Config>
__global__ void __launch_bounds__(kGatherThreads, kGatherMinBlocks - (kCompiledArch < 800 ? 1 : 0))
    spmm_extremum_kernel(const ExtremumKernelArgs args) {
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  const uint32_t number = slice_number(args.gather), unit = unit_of(args.gather, number);
  const LaneSlice<Config> slice = slice_of<Config>(args.gather, lane, number);
  ExtremumLane<Config> work{args, slice, feat_source(args.gather, slice), {}, {}};
  walk_and_join(args.gather, args.schedule, args.counters, lane, unit, work);
}

template <class Config>
cudaError_t launch_extremum(const SpmmArgs& args, ExtremumKernelArgs kernel_args, const GatherShape& shape,
                            const Launch& launch) {
  const GatherPlan plan = plan_gather<Config>(args.topology, shape);
  kernel_args.gather = plan.gather;
  kernel_args.gather.feat_rows = shape.by_edge ? edge_ids_of(args.topology) : indices_of(args.topology);
  if (const cudaError_t status = clear_counters(plan, kernel_args.counters, launch); status != cudaSuccess) {
    return status;
  }
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
