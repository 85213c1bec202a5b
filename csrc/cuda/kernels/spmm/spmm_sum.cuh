// The kernel behind spmm_sum.
#pragma once

#include <utility>

#include "../core/running_sum.cuh"
#include "spmm_launch.h"

namespace halfgnn::cuda {

// What a term is multiplied by.
enum class Weighting {
  kNone,
  kEdge,  // one factor per edge: a weight, the column's scale, or both
  kHead   // a weight for each head of an edge, and perhaps the column's scale
};

// The ids that a lane holds for its team. `edge` is set if there are weights.
struct LaneEdge {
  uint32_t row;
  uint32_t edge;
};

template <Weighting kWeighting>
__device__ LaneEdge load_ids(const SumKernelArgs& args, uint32_t position) {
  LaneEdge ids{id_at(args.gather.feat_rows, position), 0};
  if (kWeighting == Weighting::kHead || (kWeighting == Weighting::kEdge && args.weight != nullptr)) {
    ids.edge = args.edge_ids.id(position);
  }
  return ids;
}

inline __device__ float load_weight(const SumKernelArgs& args, uint32_t edge) {
  return with_type(args.weight_type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    return Fragment<T, 1>::load_streaming(static_cast<const T*>(args.weight) + edge).value();
  });
}

// The factor of a lane's edge that is the same for all its elements.
template <Weighting kWeighting>
__device__ float load_factor(const SumKernelArgs& args, const LaneEdge& ids, uint32_t position) {
  float factor = 1.f;
  if (kWeighting == Weighting::kEdge && args.weight != nullptr) {
    factor = load_weight(args, ids.edge);
    // Places past the end of a row have the weight of its last edge. Of one edge, so that no bits are lost.
    if (__builtin_expect(args.ordered_weight != nullptr, 0)) {
      const float weight[1] = {factor};
      store_rounded_as(args.ordered_weight, args.weight_type, position, weight);
    }
  }
  if (args.scale.exists()) factor *= args.scale.of(args.feat_by_edge ? args.columns.id(position) : ids.row);
  return factor;
}

// Where the weights of edge 0 for a lane's vectors are.
template <class Config, typename W>
__device__ LaneSource<Config::kRepeat> weight_source(const SumKernelArgs& args, const LaneSlice<Config>& slice) {
  LaneSource<Config::kRepeat> source{};
  const int first = slice.vector(0, args.gather) / args.vectors_per_head;
  source.first = static_cast<const char*>(args.weight) + first * static_cast<int64_t>(sizeof(W));
#pragma unroll
  for (int r = 1; r < Config::kRepeat; ++r) {
    const int head = slice.vector(r, args.gather) / args.vectors_per_head;
    source.distance[r] = static_cast<uint32_t>(head - first) * sizeof(W);
  }
  source.first = as_computed(source.first);
  return source;
}

// What a lane does (TeamWalk).
template <class Config, Weighting kWeighting, typename W>
struct SumLane {
  using Row = Fragment<typename Config::Element, Config::kVector>;
  using Weight = Fragment<W, 1>;
  static constexpr bool kPerHead = kWeighting == Weighting::kHead;

  const SumKernelArgs& args;
  const LaneSlice<Config> slice;
  const LaneSource<Config::kRepeat> feat;
  const LaneSource<Config::kRepeat> weights;  // with kHead
  RunningSum<Config::kRepeat, Config::kVector, kGatherThreads> sum;

  __device__ static constexpr int passes() { return 1; }
  __device__ LaneEdge load(uint32_t position) const { return load_ids<kWeighting>(args, position); }
  __device__ void start(const Team&, const TeamRow&, uint32_t, int) { sum.clear(); }

  __device__ void add(const Team& team, const TeamRow& row, const Lengths& lengths, const LaneEdge& ids, int chunk) {
    add_chunk(team, row, lengths, ids, chunk);
    end_chunk(team, chunk + team.size);
  }
  __device__ void end_chunk(const Team& team, int end) {
    if (__builtin_expect((end & (kRun * team.num_groups - 1)) == 0, 0)) sum.end_run();
  }
  __device__ void add_chunk(const Team& team, const TeamRow& row, const Lengths& lengths, const LaneEdge& ids,
                            int chunk) {
    float factor = 1.f;
    const int left = row.num_edges - chunk;
    if (kWeighting == Weighting::kEdge || (kPerHead && args.scale.exists())) {
      const uint32_t position = row.position(args.gather.units.row_units.rows, team, chunk);
      factor = load_factor<kWeighting>(args, ids, position);
    }
    for_each_batch_of<Config, !kPerHead>(team, lengths, chunk, [&](auto edges, auto full, int start) {
      add_batch<decltype(edges)::value, decltype(full)::value>(team, ids, factor, start, left);
    });
  }

  __device__ void finish(const Team& team, const TeamRow& row, bool is_piece) {
    sum.finish();
    if (team.num_groups > 1) sum.sum_over_lanes(slice.stride, team.size);  // over the groups
    const bool writes = row.exists() && team.group == 0;
    if (!is_piece && args.stores_type) return store(static_cast<typename Config::Element*>(args.out), row.line, writes);
    if (is_piece) return store(args.partial, row.line, writes);
    if (args.scales_result) scale_by(row.num_edges);
    with_type(args.out_type, [&](auto t) { store(static_cast<TypeOf<decltype(t)>*>(args.out), row.line, writes); });
  }

  // Sums up, in their order, what pieces left at the slots of a row, or of a part of it that is left at the first one.
  __device__ void join(int lane, const LongRow& slots, bool is_row) const {
    constexpr int kColumns = kJoinedColumns<Config>, kTogether = 4;  // slots that a lane has in flight
    using Values = Fragment<float, kColumns>;
    for_each_joined_column<Config>(args.gather, lane, [&](int64_t column, int64_t len) {
      double sums[kColumns] = {};
      Values values[kTogether];
      for_each_slot<kTogether>(
          slots, CombineTeam{0, 1, lane},
          [&](int u, int64_t slot) { values[u] = Values::load_streaming(args.partial + slot * len + column); },
          [&](int u) {
            float widened[kColumns];
            values[u].widen(widened);
#pragma unroll
            for (int i = 0; i < kColumns; ++i) sums[i] += static_cast<double>(widened[i]);
          });
      double times = 1;
      if (is_row && args.scales_result) times = args.factor;
      if (is_row && args.divide_by_degree) times /= static_cast<double>(slots.degree);
      float joined[kColumns];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) joined[i] = static_cast<float>(times * sums[i]);
      if (!is_row) return store_rounded(args.partial + slots.slot(0) * len + column, joined);
      store_rounded_as(args.out, args.out_type, int64_t{slots.row} * len + column, joined);
    });
  }

 private:
  // Adds the terms of kEdges edges of every group, those at `start` and after of a chunk of which the team has `left`
  // edges; ids and factor are what the lanes hold for the chunk. All loads are issued before the first addition. If the
  // batch is not kFull, a place past the last edge reads rows that are there and adds 0.
  template <int kEdges, bool kFull>
  __device__ void add_batch(const Team& team, const LaneEdge& ids, float factor, int start, int left) {
    Row rows[kEdges][Config::kRepeat];
    Weight weight[kEdges][kPerHead ? Config::kRepeat : 1];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + start + u * team.num_groups;
      const char* row = row_of(feat.first, __shfl_sync(kFullMask, ids.row, source), args.gather.row_bytes);
#pragma unroll
      for (int r = 0; r < Config::kRepeat; ++r) rows[u][r] = Row::load(feat.at(row, r));
      if constexpr (kPerHead) {
        const char* of_edge = weights.of_row(__shfl_sync(kFullMask, ids.edge, source), args.weight_row_bytes);
#pragma unroll
        for (int r = 0; r < Config::kRepeat; ++r) weight[u][r] = Weight::load_streaming(weights.at(of_edge, r));
      }
    }
    // The batch is summed before it joins the run: a shorter run, so a smaller error, at no cost.
    float batch[Config::kRepeat][Config::kVector];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int edge = start + u * team.num_groups;
      const bool keep = kFull || edge + team.group < left;
      float times = 1.f;
      if (kWeighting == Weighting::kEdge || (kPerHead && args.scale.exists())) {
        times = __shfl_sync(kFullMask, factor, team.source + edge);
      }
#pragma unroll
      for (int r = 0; r < Config::kRepeat; ++r) {
        if constexpr (!kFull) rows[u][r].keep_if(keep);
        float product = times;
        if constexpr (kPerHead) product *= weight[u][r].value();
        add_term(u == 0, rows[u][r], keep ? product : 0.f, batch[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < Config::kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < Config::kVector; ++i) sum.run[r][i] += batch[r][i];
    }
  }

  // to = factor * row if it is the first term, to += factor * row otherwise; factors are 1 with kNone.
  static __device__ void add_term(bool is_first, const Row& row, float factor, float (&to)[Config::kVector]) {
    float values[Config::kVector];
    row.widen(values);
#pragma unroll
    for (int i = 0; i < Config::kVector; ++i) {
      if (kWeighting == Weighting::kNone) {
        to[i] = is_first ? values[i] : to[i] + values[i];
      } else {
        to[i] = is_first ? factor * values[i] : fmaf(factor, values[i], to[i]);
      }
    }
  }

  // Multiplies by args.factor and divides by the number of edges if divide_by_degree is set.
  __device__ void scale_by(int degree) {
    const float divisor = static_cast<float>(degree), reciprocal = __frcp_rn(divisor);
    const bool divides = args.divide_by_degree && degree > 0;
#pragma unroll
    for (int r = 0; r < Config::kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < Config::kVector; ++i) {
        float& value = sum.run[r][i];
        value *= args.factor;
        if (divides) value = divide(value, divisor, reciprocal);
      }
    }
  }

  template <typename T>
  __device__ void store(T* out, uint32_t line, bool writes) const {
    store_sums<Config>(out, line, writes, args.gather, slice, sum.run);
  }
};

// What weights need takes registers: 24 or 28 warps with four rows in flight per lane hide more latency than 28 or 32
// with two. From sm_90 on more of what a warp shares is kept once per warp.
constexpr int kFewerBlocks = kCompiledArch < 900 ? 1 : 0;
// Without weights there is a block more where ptxas has been seen to need no more registers.
constexpr int kMoreBlocks = kCompiledArch == 900 ? 1 : 0;
template <class Config, Weighting kWeighting>
constexpr int kSumMinBlocks = kWeighting == Weighting::kNone   ? kGatherMinBlocks + kMoreBlocks
                              : kWeighting == Weighting::kEdge ? 8 - 2 * kFewerBlocks
                              : kCompiledArch < 800            ? 5
                              : Config::kRepeat > 1            ? 6
                                                               : 7 - kFewerBlocks;

template <class Config, Weighting kWeighting, typename W>
__global__ void __launch_bounds__(kGatherThreads, kSumMinBlocks<Config, kWeighting>)
    spmm_sum_kernel(const SumKernelArgs args) {
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  const uint32_t number = slice_number(args.gather), unit = unit_of(args.gather, number);
  const LaneSlice<Config> slice = slice_of<Config>(args.gather, lane, number);
  LaneSource<Config::kRepeat> weights{};
  if constexpr (kWeighting == Weighting::kHead) weights = weight_source<Config, W>(args, slice);
  SumLane<Config, kWeighting, W> work{args, slice, feat_source(args.gather, slice), weights, {}};
  walk_and_join(args.gather, args.schedule, args.counters, lane, unit, work);
}

template <class Config, Weighting kWeighting, typename W>
cudaError_t launch_sum(const SpmmSumArgs& args, SumKernelArgs kernel_args, const GatherShape& shape,
                       const Launch& launch) {
  const GatherPlan plan = plan_gather<Config>(args.topology, shape);
  kernel_args.gather = plan.gather;
  kernel_args.gather.feat_rows = args.feat_by_edge ? edge_ids_of(args.topology) : indices_of(args.topology);
  kernel_args.stores_type = !kernel_args.scales_result && args.out_type == args.type;
  kernel_args.vectors_per_head = static_cast<int32_t>(args.dim / Config::kVector);
  void* const ordered_weight = std::exchange(kernel_args.ordered_weight, nullptr);
  if (const cudaError_t status = clear_counters(plan, kernel_args.counters, launch); status != cudaSuccess) {
    return status;
  }
  const auto launch_blocks = [&](int64_t blocks) {
    return cuda::launch(spmm_sum_kernel<Config, kWeighting, W>, blocks, plan.threads, launch.stream, kernel_args);
  };
  if (!plan.reorders) return launch_blocks(plan.blocks);
  const int64_t of_slice = plan.gather.unit_blocks;
  kernel_args.ordered_weight = ordered_weight;
  if (const cudaError_t status = launch_blocks(of_slice); status != cudaSuccess) return status;
  kernel_args.gather.first_slice = 1;
  kernel_args.weight = std::exchange(kernel_args.ordered_weight, nullptr);
  kernel_args.edge_ids = {};
  return launch_blocks(plan.blocks - of_slice);
}

// Whether kCount elements can be one access: they divide the row, with kHead the part of a head, and bases are aligned.
template <typename T, int kCount, Weighting kWeighting>
bool fits_vector(const SpmmSumArgs& args) {
  const int64_t len = kWeighting == Weighting::kHead ? args.dim : args.heads * args.dim;
  return len % kCount == 0 && are_aligned(kCount * static_cast<int64_t>(sizeof(T)), args.feat) &&
         are_aligned(store_alignment(args.out_type, kCount), args.out);
}

template <typename T, Weighting kWeighting, typename W = T>
cudaError_t launch_fitting_sum(const SpmmSumArgs& args, const SumKernelArgs& kernel_args, const GatherShape& shape,
                               const Launch& launch) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  const auto run = [&](auto config) {
    return launch_sum<decltype(config), kWeighting, W>(args, kernel_args, shape, launch);
  };
  if (fits_vector<T, widest, kWeighting>(args)) return run(GatherConfig<T, widest, 1>{});
  if (fits_vector<T, widest / 2, kWeighting>(args)) return run(GatherConfig<T, widest / 2, 2>{});
  // Narrow accesses: if a row is wider than a warp, four of them per lane, so that indices and addresses are
  // not worked out again for every 64 or 128 bytes of a row.
  const int64_t len = args.heads * args.dim;
  constexpr bool per_head = kWeighting == Weighting::kHead;  // rarely narrow
  if constexpr (widest == 8) {
    if (fits_vector<T, 2, kWeighting>(args)) {
      if constexpr (!per_head) {
        if (len / 2 <= kWarpSize) return run(GatherConfig<T, 2, 1>{});
      }
      return run(GatherConfig<T, 2, 4>{});
    }
  }
  if constexpr (!per_head) {
    if (len <= kWarpSize) return run(GatherConfig<T, 1, 1>{});
  }
  return run(GatherConfig<T, 1, 4>{});
}

// For args.type == T.
template <typename T>
cudaError_t spmm_sum_of(const SpmmSumArgs& args, const SumKernelArgs& kernel_args, const GatherShape& shape,
                        const Launch& launch) {
  if (args.weight == nullptr && args.mean_indptr == nullptr) {
    return launch_fitting_sum<T, Weighting::kNone>(args, kernel_args, shape, launch);
  }
  if (args.weight == nullptr || args.heads == 1) {
    return launch_fitting_sum<T, Weighting::kEdge>(args, kernel_args, shape, launch);
  }
  return with_partner_type<T>(args.weight_type, [&](auto w) {
    return launch_fitting_sum<T, Weighting::kHead, TypeOf<decltype(w)>>(args, kernel_args, shape, launch);
  });
}

}  // namespace halfgnn::cuda
