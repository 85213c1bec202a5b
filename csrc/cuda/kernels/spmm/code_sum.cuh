// The kernels behind code_sum.h.
#pragma once

#include "code_vector.cuh"
#include "row_lane.cuh"

namespace halfgnn::cuda {

struct CodeSumKernelArgs {
  Gather gather;
  Ids edge_ids;
  const void* weight;
  DType weight_type;
  int32_t heads;
  int32_t vectors_per_head;
  Scales scales;
  uint32_t flip;  // makes int8 unsigned, four codes at a time
  float bias;     // by which it makes codes larger
  bool divide_by_degree;
  void* out;
  DType out_type;
  float* partial;
};

// sums = (sums - num_codes * zero_point) * scale, and divided by num_codes if it is a mean; rounded and written.
template <class Config>
__device__ void finish_codes(const CodeSumKernelArgs& args, const LaneSlice<Config>& slice, const TeamRow& row,
                             bool is_piece, bool subtracts, bool writes,
                             float (&sums)[Config::kRepeat][Config::kVector]) {
  const Scales& scales = args.scales;
  const float count = static_cast<float>(row.num_edges);
  const bool by_row = scales.per == ScalePer::kRow, by_column = scales.per == ScalePer::kColumn;
  const bool divides = args.divide_by_degree && !is_piece && row.num_edges > 0;
  const bool has_zero = subtracts && scales.zero_point != nullptr;
  const float scale = by_row ? 1.f : __ldg(scales.scale), zero = has_zero ? __ldg(scales.zero_point) : 0.f;
  const float reciprocal = __frcp_rn(count);
#pragma unroll
  for (int r = 0; r < Config::kRepeat; ++r) {
    const int64_t column = static_cast<int64_t>(slice.vector(r, args.gather)) * Config::kVector;
#pragma unroll
    for (int i = 0; i < Config::kVector; ++i) {
      float& sum = sums[r][i];
      sum = fmaf(-count, by_column && has_zero ? __ldg(scales.zero_point + column + i) : zero, sum);
      sum *= by_column ? __ldg(scales.scale + column + i) : scale;
      if (divides) sum = divide(sum, count, reciprocal);
    }
  }
  if (is_piece) return store_sums<Config>(args.partial, row.line, writes, args.gather, slice, sums);
  with_type(args.out_type, [&](auto t) {
    store_sums<Config>(static_cast<TypeOf<decltype(t)>*>(args.out), row.line, writes, args.gather, slice, sums);
  });
}

// ---- Sums of integers.

// Codes that a lane adds up before the sums join their totals.
constexpr int kIntegerRun = 256;
static_assert(kIntegerRun * 255 < 1 << 16, "sums of a run fit into half a register");

// What a lane does (TeamWalk).
template <class Config>
struct IntegerLane {
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;
  static constexpr int kMinBlocks = kGatherMinBlocks - 1;
  using Row = CodeVector<kVector>;

  const CodeSumKernelArgs& args;
  const LaneSlice<Config> slice;
  const LaneSource<kRepeat> codes;
  PackedSums<kVector> sums[kRepeat];
  bool has_total;  // the same for the whole warp
  bool is_short;   // no row of the warp has more edges than a run: sums of its groups fit, too

  explicit __device__ IntegerLane(const CodeSumKernelArgs& args)
      : args(args), slice(args.gather, lane_of_warp()), codes(feat_source(args.gather, slice)) {}

  __device__ static constexpr int passes() { return 1; }
  __device__ uint32_t load(uint32_t position) const { return args.gather.feat_rows.id(position); }

  __device__ void start(const Team&, const TeamRow& row, uint32_t, int) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) sums[r].clear();
    has_total = false;
    is_short = warp_max(row.num_edges) <= kIntegerRun;
  }

  __device__ void add(const Team& team, const TeamRow& row, const Lengths& lengths, uint32_t id, int chunk) {
    const int left = row.num_edges - chunk;
    for_each_batch<Config::kUnroll>(team, lengths, chunk, [&](auto edges, auto full, int start) {
      add_batch<decltype(edges)::value, decltype(full)::value>(team, id, start, left);
    });
    if (!is_short && ((chunk + team.size) & (kIntegerRun * team.num_groups - 1)) == 0) end_run();
  }

  __device__ void finish(const Team& team, const TeamRow& row, bool is_piece) {
    float values[kRepeat][kVector];
    if (is_short) {
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        for (int distance = slice.stride; distance < team.size; distance *= 2) sums[r].add_lane(distance);
#pragma unroll
        for (int i = 0; i < kVector; ++i) values[r][i] = static_cast<float>(sums[r].of(i));
      }
    } else {
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          float& value = values[r][i];
          value = static_cast<float>(sums[r].of(i) + (has_total ? total(r, i) : 0));
          for (int distance = slice.stride; distance < team.size; distance *= 2) {
            value += __shfl_xor_sync(kFullMask, value, distance);
          }
        }
      }
    }
    const float biases = args.bias * static_cast<float>(row.num_edges);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[r][i] -= biases;
    }
    finish_codes<Config>(args, slice, row, is_piece, true, row.exists() && team.group == 0, values);
  }

 private:
  template <int kEdges, bool kFull>
  __device__ void add_batch(const Team& team, uint32_t id, int start, int left) {
    Row rows[kEdges][kRepeat];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + start + u * team.num_groups;
      const char* row = codes.of_row(__shfl_sync(kFullMask, id, source), args.gather.row_bytes);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) rows[u][r] = Row::load(codes.at(row, r));
    }
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const bool keep = kFull || start + u * team.num_groups + team.group < left;
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        if constexpr (!kFull) rows[u][r].keep_if(keep);
        sums[r].add(rows[u][r], keep ? args.flip : 0);
      }
    }
  }

  __device__ void end_run() {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) total(r, i) = sums[r].of(i) + (has_total ? total(r, i) : 0);
      sums[r].clear();
    }
    has_total = true;
  }

  // Totals are rarely used, so they lie in shared memory. A thread's lie beside those of its neighbours.
  __device__ static uint32_t& total(int r, int i) {
    __shared__ uint32_t totals[kRepeat][kVector][kGatherThreads];
    return totals[r][i][threadIdx.x];
  }
};

// ---- Sums of values.

struct CodeEdge {
  uint32_t row;
  uint32_t edge;  // if there are weights
};

// What a lane does (TeamWalk). Zero points are taken off before a code is multiplied, so that zeros add up to zero.
template <class Config, class Decode>
struct ValueLane : RowLane<Config, 1> {
  using Base = RowLane<Config, 1>;
  using Base::feat;
  using Base::kRepeat;
  using Base::kVector;
  using Base::slice;
  using Base::sum;
  using Row = CodeVector<kVector>;
  static constexpr int kMinBlocks = kGatherMinBlocks - (Decode::kHasZero ? 2 : 1);

  const CodeSumKernelArgs& args;
  float zero[Decode::kHasZero ? kRepeat : 1][Decode::kHasZero ? kVector : 1];  // of the lane's columns

  explicit __device__ ValueLane(const CodeSumKernelArgs& args) : Base(args.gather), args(args) {
    if constexpr (Decode::kHasZero) {
      const Scales& scales = args.scales;
      const bool has_zero = scales.zero_point != nullptr && scales.per != ScalePer::kRow;
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        const int64_t column = static_cast<int64_t>(slice.vector(r, args.gather)) * kVector;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const int64_t at = scales.per == ScalePer::kColumn ? column + i : 0;
          zero[r][i] = has_zero ? __ldg(scales.zero_point + at) : 0.f;
        }
      }
    }
  }

  __device__ CodeEdge load(uint32_t position) const {
    return {args.gather.feat_rows.id(position), args.weight != nullptr ? args.edge_ids.id(position) : 0};
  }
  __device__ void start(const Team&, const TeamRow&, uint32_t, int) { sum.clear(); }

  __device__ void add(const Team& team, const TeamRow& row, const Lengths& lengths, const CodeEdge& ids, int chunk) {
    const Scales& scales = args.scales;
    const bool by_row = scales.per == ScalePer::kRow;
    const float zero_of_row =
        Decode::kHasZero && by_row && scales.zero_point != nullptr ? __ldg(scales.zero_point + ids.row) : 0.f;
    float factor = by_row ? __ldg(scales.scale + ids.row) : 1.f;
    if (args.weight != nullptr && args.heads == 1) factor *= load_weight(ids.edge);
    const int left = row.num_edges - chunk;
    this->add_chunk(team, lengths, chunk, [&](auto edges, auto full, int start) {
      add_batch<decltype(edges)::value, decltype(full)::value>(team, ids, factor, zero_of_row, start, left);
    });
  }

  __device__ void finish(const Team& team, const TeamRow& row, bool is_piece) {
    const bool writes = this->finish_sums(team, row);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum.run[r][i] *= Decode::unit();
    }
    finish_codes<Config>(args, slice, row, is_piece, false, writes, sum.run);
  }

 private:
  __device__ float load_weight(uint64_t i) const {
    return with_type(args.weight_type, [&](auto t) {
      using T = TypeOf<decltype(t)>;
      return Fragment<T, 1>::load_streaming(static_cast<const T*>(args.weight) + i).value();
    });
  }

  template <int kEdges, bool kFull>
  __device__ void add_batch(const Team& team, const CodeEdge& ids, float factor, float zero_of_row, int start,
                            int left) {
    Row rows[kEdges][kRepeat];
    float product[kEdges][kRepeat];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + start + u * team.num_groups;
      const char* row = feat.of_row(__shfl_sync(kFullMask, ids.row, source), args.gather.row_bytes);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) rows[u][r] = Row::load(feat.at(row, r));
    }
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + start + u * team.num_groups;
      const float times = __shfl_sync(kFullMask, factor, source);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) product[u][r] = times;
    }
    if (args.heads > 1) {
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        const int source = team.source + start + u * team.num_groups;
        const uint64_t first = uint64_t{__shfl_sync(kFullMask, ids.edge, source)} * static_cast<uint32_t>(args.heads);
#pragma unroll
        for (int r = 0; r < kRepeat; ++r) {
          product[u][r] *=
              load_weight(first + static_cast<uint32_t>(slice.vector(r, args.gather) / args.vectors_per_head));
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int edge = start + u * team.num_groups;
      const bool keep = kFull || edge + team.group < left;
      const float of_row = Decode::kHasZero ? __shfl_sync(kFullMask, zero_of_row, team.source + edge) : 0.f;
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        if constexpr (!kFull) rows[u][r].keep_if(keep);
        float values[kVector];
        Decode::widen(rows[u][r], args.flip, args.bias, values);
        const float times = keep ? product[u][r] : 0.f;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if constexpr (Decode::kHasZero) values[i] = values[i] - zero[r][i] - of_row;
          sum.run[r][i] = fmaf(times, values[i], sum.run[r][i]);
        }
      }
    }
  }
};

template <class Lane>
__global__ void __launch_bounds__(kGatherThreads, Lane::kMinBlocks) code_sum_kernel(const CodeSumKernelArgs args) {
  walk_unit<Lane>(args);
}

// Whether kCount codes can be one access: they divide the row, or the part of a head, and bases are aligned.
inline bool fits_codes(const CodeSumArgs& args, int64_t count) {
  const int64_t len = args.weight != nullptr ? args.dim : args.heads * args.dim;
  return len % count == 0 && are_aligned(count, args.codes) &&
         are_aligned(store_alignment(args.out_type, static_cast<int>(count)), args.out);
}

template <class Config, class Lane>
cudaError_t launch_codes(const CodeSumArgs& args, CodeSumKernelArgs kernel_args, const GatherShape& shape,
                         const Launch& launch) {
  kernel_args.vectors_per_head = static_cast<int32_t>(args.dim / Config::kVector);
  return launch_rows<Config>(code_sum_kernel<Lane>, args.topology, shape, kernel_args, launch);
}

inline cudaError_t sum_integers(const CodeSumArgs& args, const CodeSumKernelArgs& kernel_args, const GatherShape& shape,
                                const Launch& launch) {
  const auto run = [&](auto config) {
    using Config = decltype(config);
    return launch_codes<Config, IntegerLane<Config>>(args, kernel_args, shape, launch);
  };
  if (fits_codes(args, 16)) return run(GatherConfig<uint8_t, 16, 1>{});
  if (fits_codes(args, 4)) return run(GatherConfig<uint8_t, 4, 2>{});
  return run(GatherConfig<uint8_t, 1, 4>{});
}

template <class Decode>
cudaError_t sum_values(const CodeSumArgs& args, const CodeSumKernelArgs& kernel_args, const GatherShape& shape,
                       const Launch& launch) {
  const auto run = [&](auto config) {
    using Config = decltype(config);
    return launch_codes<Config, ValueLane<Config, Decode>>(args, kernel_args, shape, launch);
  };
  if (fits_codes(args, 4)) return run(GatherConfig<uint8_t, 4, 2>{});
  return run(GatherConfig<uint8_t, 1, 4>{});
}

}  // namespace halfgnn::cuda
