// The kernel behind copy_reduce. Include only where it is instantiated (copy_reduce_<type>.cu).
#pragma once

#include "copy_reduce_launch.h"
#include "reductions.cuh"
#include "row_lane.cuh"

namespace halfgnn::cuda {

// What a lane does (TeamWalk).
template <class Config>
struct ReduceLane : RowLane<Config, 3> {  // sums of values, of distances from the shift, and of their squares
  using Base = RowLane<Config, 3>;
  using Base::kVector, Base::kRepeat, Base::slice, Base::feat, Base::sum;
  using T = typename Config::Element;
  using Row = Fragment<T, kVector>;

  const CopyReduceKernelArgs& args;
  Row shift[kRepeat];
  Extrema<T, kVector> extrema[kRepeat];

  explicit __device__ ReduceLane(const CopyReduceKernelArgs& args) : Base(args.gather), args(args) {}

  __device__ uint32_t load(uint32_t position) const { return args.gather.feat_rows.id(position); }

  __device__ void start(const Team& team, const TeamRow& row, uint32_t, int) {
    sum.clear();
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      shift[r] = Row{};
      extrema[r].clear(team.group < row.num_edges ? static_cast<uint32_t>(team.group) : kNoPosition);
    }
  }

  __device__ void add(const Team& team, const TeamRow& row, const Lengths& lengths, uint32_t ids, int chunk) {
    for_each_batch<Config::kUnroll>(team, lengths, chunk, [&](auto edges, auto full, int start) {
      add_batch<decltype(edges)::value, decltype(full)::value>(team, row, ids, start, chunk);
    });
    if (chunk == 0 && args.has_squares && team.size < lengths.longest) move_shift(team, row);
    if (((chunk + team.size) & (kRun * team.num_groups - 1)) == 0) sum.end_run();
  }

  __device__ void finish(const Team& team, const TeamRow& row, bool is_piece) {
    const bool writes = row.exists() && team.group == 0;
    sum.finish();
    if (args.has_extrema) finish_extrema(team, row, writes, is_piece);
    if (!args.has_sums) return;
    sum.sum_over_lanes(slice.stride, team.size);  // over the groups
    store_moments(row, writes, is_piece);
  }

 private:
  // Looks at kEdges edges of every group, in ascending order. All loads are issued before the first use. If the batch
  // is not kFull, places past the last edge look at that edge again, and add nothing.
  template <int kEdges, bool kFull>
  __device__ void add_batch(const Team& team, const TeamRow& row, uint32_t ids, int start, int chunk) {
    Row rows[kEdges][kRepeat];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + start + u * team.num_groups;
      const char* of_row = feat.of_row(__shfl_sync(kFullMask, ids, source), args.gather.row_bytes);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) rows[u][r] = Row::load(feat.at(of_row, r));
    }
    const int first = chunk + start + team.group, last = row.num_edges - 1;
    if (args.has_extrema) {
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        const int place = first + u * team.num_groups;
#pragma unroll
        for (int r = 0; r < kRepeat; ++r) {
          extrema[r].take(rows[u][r], static_cast<uint32_t>(kFull ? place : min(place, last)));
        }
      }
    }
    const auto keeps = [&](int u) { return kFull || first + u * team.num_groups <= last; };
    if (args.has_squares) {
      if (chunk + start == 0) start_shift(team, row, rows, keeps);
      add_moments<true>(rows, keeps);
    } else {
      add_moments<false>(rows, keeps);
    }
  }

  // A batch is summed before it joins the run: a shorter run, so a smaller error, at no cost.
  template <bool kSquares, int kEdges, class Keep>
  __device__ void add_moments(const Row (&rows)[kEdges][kRepeat], const Keep& keeps) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float from[kVector], values[kVector], distances[kVector];
      shift[r].widen(from);
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        const bool keep = keeps(u);
        float x[kVector];
        rows[u][r].widen(x);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float value = keep ? x[i] : 0.f;
          values[i] = u == 0 ? value : values[i] + value;
          if constexpr (kSquares) {
            const float distance = keep ? x[i] - from[i] : 0.f;
            distances[i] = u == 0 ? distance : distances[i] + distance;
            float& squares = sum.run[2 * kRepeat + r][i];
            squares = fmaf(distance, distance, squares);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sum.run[r][i] += values[i];
        if constexpr (kSquares) sum.run[kRepeat + r][i] += distances[i];
      }
    }
  }

  // ---- The shift: of the same value in all groups of a team, such that its multiples are finite, and 0 without edges.

  __device__ Row shift_of(const TeamRow& row, const float (&wanted)[kVector]) const {
    float values[kVector];
    const auto edges = static_cast<float>(row.num_edges);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = edges > 0 && fabsf(wanted[i] * edges) <= FLT_MAX ? wanted[i] : 0.f;
    }
    return Row::round(values);
  }

  // Half way from the first to the last edge of the first group's first batch, if the batch is full: equal values
  // have their own.
  template <int kEdges, class Keep>
  __device__ void start_shift(const Team& team, const TeamRow& row, const Row (&rows)[kEdges][kRepeat],
                              const Keep& keeps) {
    const float half = kEdges > 1 && keeps(kEdges - 1) ? 0.5f : 0.f;
    const int lane = team.source - team.group + (team.lane & (slice.stride - 1));  // of the first group
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float first[kVector], last[kVector];
      rows[0][r].widen(first);
      rows[kEdges - 1][r].widen(last);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        first[i] = __shfl_sync(kFullMask, fmaf(last[i] - first[i], half, first[i]), lane);
      }
      shift[r] = shift_of(row, first);
    }
  }

  // To the mean of the first chunk, as if distances had been taken from there. Otherwise squares of many edges would
  // lose digits if the first edge's value is far from the others.
  __device__ void move_shift(const Team& team, const TeamRow& row) {
    const int edges_of_team = min(row.num_edges, team.size);
    const auto edges = static_cast<float>((edges_of_team - team.group + team.num_groups - 1) / team.num_groups);
    const float inverse = 1.f / static_cast<float>(max(edges_of_team, 1));
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float from[kVector], to[kVector];
      shift[r].widen(from);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        to[i] = fmaf(sum_of_groups(team, sum.run[kRepeat + r][i]), inverse, from[i]);
      }
      const Row moved = shift_of(row, to);
      moved.widen(to);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float by = to[i] - from[i];
        float &total = sum.run[kRepeat + r][i], &squares = sum.run[2 * kRepeat + r][i];
        squares = fmaf(by, fmaf(edges, by, -2.f * total), squares);
        total = fmaf(-edges, by, total);
      }
      shift[r] = moved;
    }
  }

  __device__ float sum_of_groups(const Team& team, float value) const {
    for (int distance = slice.stride; distance < team.size; distance *= 2) {
      value += __shfl_xor_sync(kFullMask, value, distance);
    }
    return value;
  }

  // ---- Results

  // The first of the lane's r-th elements in a line.
  __device__ int64_t element(uint32_t line, int r) const {
    return (int64_t{line} * args.gather.num_vectors + slice.first + r * slice.stride) * kVector;
  }

  // Rounds them to the type of the results.
  __device__ void store(void* out, int64_t i, const float (&values)[kVector]) const {
    if (out == nullptr) return;
    if (args.out.type == DType::kFloat) return store_rounded(static_cast<float*>(out) + i, values);
    store_rounded(static_cast<T*>(out) + i, values);
  }

  __device__ void store_moments(const TeamRow& row, bool writes, bool is_piece) {
    const float edges = static_cast<float>(max(row.num_edges, 1)), inverse = __frcp_rn(edges);
    const ReductionsOut& out = args.out;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      if (!writes || !slice.has(r, args.gather)) continue;
      const int64_t at = element(row.line, r);
      float from[kVector], values[kVector];
      shift[r].widen(from);
      float (&total)[kVector] = sum.run[r], (&distance)[kVector] = sum.run[kRepeat + r];
      float (&squares)[kVector] = sum.run[2 * kRepeat + r];
      if (is_piece) {
        store_rounded(args.partial.sum + at, total);
        store_rounded(args.partial.shift + at, from);
        store_rounded(args.partial.distance + at, distance);
        store_rounded(args.partial.squares + at, squares);
        continue;
      }
      store(out.sum, at, total);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        values[i] = divide(total[i], edges, inverse);
        const float second = fmaf(-distance[i], divide(distance[i], edges, inverse), squares[i]);
        squares[i] = divide(second < 0.f ? 0.f : second, edges, inverse);
      }
      store(out.mean, at, values);
      if (out.kept_mean != nullptr) store_rounded(out.kept_mean + at, values);
      store(out.var, at, squares);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = std_of(squares[i], out.eps);
      store(out.std, at, values);
      if (out.kept_std != nullptr) store_rounded(out.kept_std + at, values);
    }
  }

  __device__ void finish_extrema(const Team& team, const TeamRow& row, bool writes, bool is_piece) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      typename Extrema<T, kVector>::Winners winners = extrema[r].winners();
      if (__any_sync(kFullMask, may_have_nan(r))) find_nans<Row, kVector>(args.gather, feat, team, row, r, winners);
      for (int distance = slice.stride; distance < team.size; distance *= 2) winners.join(distance);
      if (writes && slice.has(r, args.gather)) store_extrema(row, element(row.line, r), is_piece, winners);
    }
  }

  // Or infinite values of both signs.
  __device__ bool may_have_nan(int r) const {
    bool found = false;
#pragma unroll
    for (int i = 0; i < kVector; ++i) found = found || sum.run[r][i] != sum.run[r][i];
    return found && Extrema<T, kVector>::kSeeksNan;
  }

  template <class Winners>
  __device__ void store_extrema(const TeamRow& row, int64_t at, bool is_piece, const Winners& winners) const {
    Winner max[kVector], min[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      max[i] = winners.largest(i);
      min[i] = winners.smallest(i);
      max[i].offset += row.begin;
      min[i].offset += row.begin;
    }
    if (!is_piece) return store_winners(args.out, at, row.num_edges > 0, max, min);
    int64_t largest[kVector], smallest[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      largest[i] = largest_key(max[i].value, max[i].offset);
      smallest[i] = smallest_key(min[i].value, min[i].offset);
    }
    store_keys(args.partial.max + at, largest);
    store_keys(args.partial.min + at, smallest);
  }
};

// Registers of four edges in flight, of three sums and two winners of each column: 96, so 20 warps. Two vectors of four
// halves have more addresses.
template <class Config>
constexpr int kReduceMinBlocks = (Config::kVector == 4 && Config::kRepeat == 2 ? 4 : 5) - kBlockLess;

template <class Config>
__global__ void __launch_bounds__(kGatherThreads, kReduceMinBlocks<Config>)
    copy_reduce_kernel(const CopyReduceKernelArgs args) {
  walk_unit<ReduceLane<Config>>(args);
}

template <typename T>
cudaError_t copy_reduce_of(const CopyReduceArgs& args, const CopyReduceKernelArgs& kernel_args,
                           const GatherShape& shape, const Launch& launch) {
  const auto fits = [&](int64_t count) {
    const auto whole = static_cast<int>(count);
    return args.dim % count == 0 && are_aligned(count * static_cast<int64_t>(sizeof(T)), args.feat) &&
           are_aligned(store_alignment(args.out_type, whole), args.sum, args.mean, args.max, args.min, args.var,
                       args.std) &&
           are_aligned(store_alignment(DType::kFloat, whole), args.arg_max, args.arg_min, args.kept_mean,
                       args.kept_std);
  };
  return with_fitting_vector<sizeof(T), true>(fits, [&](auto vector, auto repeat) {
    using Config = GatherConfig<T, decltype(vector)::value, decltype(repeat)::value>;
    return launch_rows<Config>(copy_reduce_kernel<Config>, args.topology, shape, kernel_args, launch);
  });
}

}  // namespace halfgnn::cuda
