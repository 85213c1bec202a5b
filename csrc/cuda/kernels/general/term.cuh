// Terms (see term.h) on the device: what row-wise and edge-wise kernels share.
#pragma once

#include "../core/rows.cuh"
#include "../core/scalar.cuh"
#include "term.h"

namespace halfgnn::cuda {

constexpr int kTermWarps = 4;
constexpr int kTermThreads = kTermWarps * kWarpSize;

// Kernels are compiled for a number of inputs, a vector length, with or without winners and with or without summed
// elements. Those with summed elements also take terms without winners, and of one input if they take two.
template <int kNumInputs, int kVectorElements, bool kHasWinner, bool kHasSum>
struct TermConfig {
  static constexpr int kInputs = kNumInputs;
  static constexpr int kVector = kVectorElements;
  static constexpr bool kWinner = kHasWinner;
  static constexpr bool kSummed = kHasSum;
  // Edges whose elements a lane has in flight.
  static constexpr int kEdges = kSummed || (kVector > 1 && (kWinner || kInputs > 1)) ? 2 : 4;
  // So many blocks must fit on a multiprocessor: at most 128, 96, 80 or 64 registers per lane.
  static constexpr int kLoads = kInputs + kWinner + (kVector > 1);
  static constexpr int kMinBlocks = kSummed ? 4 : kLoads > 3 ? 5 : kLoads > 1 ? 6 : 8;
};

// What one lane of a warp works on, the same for every edge but for which edges it takes.
template <class Config>
struct TermLane {
  int group;  // takes edges group, group + num_groups, ... of 32
  int num_groups;
  uint32_t result;     // of this lane's results, the first
  bool stores;         // of the lanes that work on the same results, this one holds the totals at the end
  uint32_t sum_first;  // of s
  uint32_t sum_step;
  uint32_t offset[Config::kInputs];  // in bytes, of the element of `result` in each input's row

  __device__ TermLane(const Term& term, int lane, uint32_t slice) {
    const int result_lanes = 1 << term.log2_result_lanes;
    const int sum_lanes = 1 << term.log2_sum_lanes;
    const int result_lane = lane & (result_lanes - 1);
    const int sum_lane = (lane >> term.log2_result_lanes) & (sum_lanes - 1);
    group = lane >> (term.log2_result_lanes + term.log2_sum_lanes);
    num_groups = kWarpSize >> (term.log2_result_lanes + term.log2_sum_lanes);

    const uint32_t per_lane = term.vectors_in_sum ? 1 : Config::kVector;
    const uint32_t per_step = term.vectors_in_sum ? Config::kVector : 1;
    const uint32_t wanted = (slice * result_lanes + result_lane) * per_lane;
    const bool exists = wanted < term.num_results;
    // A lane without results works on the last ones too, so that no load depends on a condition.
    result = exists ? wanted : term.num_results - per_lane;
    stores = exists && sum_lane == 0;
    sum_first = sum_lane * per_step;
    sum_step = sum_lanes * per_step;
#pragma unroll
    for (int i = 0; i < Config::kInputs; ++i) offset[i] = 0;
    add_offsets(term, 0, term.num_result_dims, result, offset);
  }

  // Adds the offsets of element `index` of the dims first ... last - 1.
  static __device__ void add_offsets(const Term& term, int first, int last, uint32_t index,
                                     uint32_t (&offset)[Config::kInputs]) {
    for (int d = first; d < last; ++d) {
      const TermDim& dim = term.dim[d];
      const bool is_last = d + 1 == last;
      const uint32_t quotient = is_last ? 0 : index / dim.size;
      const uint32_t rest = index - quotient * dim.size;
#pragma unroll
      for (int i = 0; i < Config::kInputs; ++i) offset[i] += rest * dim.stride[i];
      if (is_last) break;
      index = quotient;
    }
  }
};

// What a lane knows about the edge of its own position; shuffled to those that work on that edge.
template <class Config>
struct TermIds {
  uint32_t row[Config::kInputs];  // of each input's data
  uint32_t edge;
  float factor;

  __device__ TermIds(const Term& term, uint32_t own_row, uint32_t col, uint32_t own_edge) : edge(own_edge) {
    const auto at = [&](Target target) {
      return target == Target::kRow ? own_row : target == Target::kCol ? col : own_edge;
    };
#pragma unroll
    for (int i = 0; i < Config::kInputs; ++i) row[i] = at(term.input[i].target);
    factor = term.scale.exists() ? term.scale.of(at(term.scale_target)) : 1.f;
    if (term.negate) factor = -factor;
  }
};

// A few edges, the same ones for all lanes of a group.
template <class Config>
struct TermEdges {
  uint32_t row[Config::kInputs][Config::kEdges];  // of each input's data
  uint32_t edge[Config::kEdges];
  float factor[Config::kEdges];

  // Edges start, start + num_groups, ... of the warp's 32; past `count`, the last one again. The whole warp takes part.
  __device__ TermEdges(const Term& term, const TermLane<Config>& lane, const TermIds<Config>& ids, bool wants_edge,
                       int start, int count) {
#pragma unroll
    for (int e = 0; e < Config::kEdges; ++e) {
      const int wanted = start + e * lane.num_groups + lane.group;
      const int source = wanted < count ? wanted : count - 1;
#pragma unroll
      for (int i = 0; i < Config::kInputs; ++i) {
        row[i][e] = __shfl_sync(kFullMask, ids.row[i], source);
      }
      edge[e] = wants_edge ? __shfl_sync(kFullMask, ids.edge, source) : 0;
      factor[e] = term.has_factor() ? __shfl_sync(kFullMask, ids.factor, source) : 1.f;
    }
  }
};

// The edges of a piece in batches of up to Config::kEdges for each group: calls use(edges, chunk, first, count). A
// lane's edge e is number first + e * num_groups of the `count` edges that follow position begin + chunk. Past the last
// of them it is that one again. Ids are read a chunk ahead. The whole warp takes part.
template <class Config, class Use>
__device__ void for_each_term_batch(const Term& term, const Ids& indices, const Ids& edge_ids,
                                    const TermLane<Config>& lane, const Piece& piece, bool wants_edge, int own_lane,
                                    const Use& use) {
  const int length = piece.num_edges();
  uint32_t next_col = 0, next_edge = 0;
  const auto load_ids = [&](int i) {
    if (term.reads_col && i < length) next_col = indices.id(piece.begin + i);
    if (term.reads_edge && i < length) next_edge = edge_ids.id(piece.begin + i);
  };
  load_ids(own_lane);
#pragma unroll 1
  for (int chunk = 0; chunk < length; chunk += kWarpSize) {
    const TermIds<Config> ids(term, piece.row, next_col, next_edge);
    load_ids(chunk + kWarpSize + own_lane);
    const int count = length - chunk < kWarpSize ? length - chunk : kWarpSize;
#pragma unroll 1
    for (int start = 0; start < count; start += Config::kEdges * lane.num_groups) {
      const TermEdges<Config> edges(term, lane, ids, wants_edge, start, count);
      use(edges, chunk, start + lane.group, count);
    }
  }
}

// Elements from `offset` on of the rows `row` of an input, as stored: fp32 values, or two halves in the bits of one.
template <int kVector, int kEdges>
__device__ void load_stored(const TermInput& input, const uint32_t (&row)[kEdges], uint32_t offset,
                            float (&values)[kEdges][kVector]) {
  const char* source[kEdges];
#pragma unroll
  for (int e = 0; e < kEdges; ++e) {
    source[e] = static_cast<const char*>(input.data) + offset + static_cast<uint64_t>(row[e]) * input.row_bytes;
  }
  const bool is_float = input.type == DType::kFloat;
  if (kVector == 1 || input.splat) {
    if (is_float) {
#pragma unroll
      for (int e = 0; e < kEdges; ++e) values[e][0] = __ldg(reinterpret_cast<const float*>(source[e]));
    } else {
#pragma unroll
      for (int e = 0; e < kEdges; ++e) {
        const uint32_t bits = __ldg(reinterpret_cast<const unsigned short*>(source[e]));
        values[e][0] = bits_as<float>(bits);
      }
    }
  } else if constexpr (kVector == 4) {
    if (is_float) {
#pragma unroll
      for (int e = 0; e < kEdges; ++e) {
        const float4 word = __ldg(reinterpret_cast<const float4*>(source[e]));
        values[e][0] = word.x;
        values[e][1] = word.y;
        values[e][2] = word.z;
        values[e][3] = word.w;
      }
    } else {
#pragma unroll
      for (int e = 0; e < kEdges; ++e) {
        const uint2 word = __ldg(reinterpret_cast<const uint2*>(source[e]));
        values[e][0] = bits_as<float>(word.x);
        values[e][1] = bits_as<float>(word.y);
      }
    }
  }
}

template <typename T, int kVector, int kEdges>
__device__ void widen_halves(float (&values)[kEdges][kVector]) {
#pragma unroll
  for (int e = 0; e < kEdges; ++e) {
    using Pair = typename Convert<T>::Pair;
    const float2 first = Convert<T>::widen(bits_as<Pair>(values[e][0]));
    if constexpr (kVector == 4) {
      const float2 second = Convert<T>::widen(bits_as<Pair>(values[e][1]));
      values[e][1] = first.y;
      values[e][2] = second.x;
      values[e][3] = second.y;
    }
    values[e][0] = first.x;
  }
}

// Stored values to fp32, one a place.
template <int kVector, int kEdges>
__device__ void widen_stored(const TermInput& input, float (&values)[kEdges][kVector]) {
  const bool single = kVector == 1 || input.splat;
  if (input.type == DType::kHalf) widen_halves<__half>(values);
  if (input.type == DType::kBFloat16) widen_halves<__nv_bfloat16>(values);
  if (kVector > 1 && single) {
#pragma unroll
    for (int e = 0; e < kEdges; ++e) {
#pragma unroll
      for (int i = 1; i < kVector; ++i) values[e][i] = values[e][0];
    }
  }
}

// The winners of elements from `offset` on of the rows `row`, one for each place: what has winners is never splat. Ids
// are below 2^32 - 1, so that the low half of one tells them apart, and from the -1 of a row without edges.
template <int kVector, int kEdges>
__device__ void load_winners(const Term& term, const uint32_t (&row)[kEdges], uint32_t offset,
                             uint32_t (&winner)[kEdges][kVector]) {
  const char* data = static_cast<const char*>(term.winner.data);
  data += static_cast<uint64_t>(offset) << term.winner_shift;
#pragma unroll
  for (int e = 0; e < kEdges; ++e) {
    const char* source = data + static_cast<uint64_t>(row[e]) * term.winner_row_bytes;
    if constexpr (kVector == 1) {
      winner[e][0] = __ldg(reinterpret_cast<const uint32_t*>(source));
    } else {
      static_assert(kVector == 4, "a term vector");
      if (term.winner.is_int64) {
        const uint4 low = __ldg(reinterpret_cast<const uint4*>(source));
        const uint4 high = __ldg(reinterpret_cast<const uint4*>(source) + 1);
        winner[e][0] = low.x;
        winner[e][1] = low.z;
        winner[e][2] = high.x;
        winner[e][3] = high.z;
      } else {
        const uint4 word = __ldg(reinterpret_cast<const uint4*>(source));
        winner[e][0] = word.x;
        winner[e][1] = word.y;
        winner[e][2] = word.z;
        winner[e][3] = word.w;
      }
    }
  }
}

// a = op(a, b), element by element.
template <int kVector, int kEdges>
__device__ void apply(TermOp op, float (&a)[kEdges][kVector], const float (&b)[kEdges][kVector]) {
  const auto each = [&](auto function) {
#pragma unroll
    for (int e = 0; e < kEdges; ++e) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) a[e][i] = function(a[e][i], b[e][i]);
    }
  };
  switch (op) {
    case TermOp::kAdd: return each([](float x, float y) { return x + y; });
    case TermOp::kSub: return each([](float x, float y) { return x - y; });
    case TermOp::kMul: return each([](float x, float y) { return x * y; });
    case TermOp::kReluAdd: return each([](float x, float y) { return x + y <= 0.f ? 0.f : x + y; });
    default: return each([](float x, float y) { return x / y; });
  }
}

// The terms of a few edges for element `summed` of s at the lane's results. All loads are issued before the first use.
template <class Config>
__device__ void form_terms(const Term& term, const TermEdges<Config>& edges, const uint32_t (&offset)[Config::kInputs],
                           float (&a)[Config::kEdges][Config::kVector]) {
  constexpr int kEdges = Config::kEdges, kVector = Config::kVector;
  const bool has_second = !Config::kSummed || term.num_inputs > 1;
  float b[kEdges][kVector];
  float c[kEdges][kVector];
  uint32_t winner[kEdges][kVector];
  const bool has_winner = Config::kWinner && (!Config::kSummed || term.winner.data != nullptr);
  if (has_winner) load_winners(term, edges.row[0], offset[0], winner);
  load_stored(term.input[0], edges.row[0], offset[0], a);
  if constexpr (Config::kInputs > 1) {
    if (has_second) load_stored(term.input[1], edges.row[1], offset[1], b);
  }
  if constexpr (Config::kInputs > 2) load_stored(term.input[2], edges.row[2], offset[2], c);

  widen_stored(term.input[0], a);
  if (!term.scale_result && term.has_factor()) {
#pragma unroll
    for (int e = 0; e < kEdges; ++e) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) a[e][i] *= edges.factor[e];
    }
  }
  if (has_winner) {
#pragma unroll
    for (int e = 0; e < kEdges; ++e) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) a[e][i] = winner[e][i] == edges.edge[e] ? a[e][i] : 0.f;
    }
  }
  if constexpr (Config::kInputs > 2) {
    widen_stored(term.input[1], b);
    widen_stored(term.input[2], c);
#pragma unroll
    for (int e = 0; e < kEdges; ++e) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        a[e][i] = term.op == TermOp::kReluSlope ? (b[e][i] + c[e][i] <= 0.f ? 0.f : a[e][i])
                                                : -a[e][i] * (b[e][i] / c[e][i]) / c[e][i];
      }
    }
  } else if constexpr (Config::kInputs > 1) {
    if (has_second) {
      widen_stored(term.input[1], b);
      apply(term.op, a, b);
    }
  }
}

// Calls add(offsets of the inputs, whether the lane's element of s exists) for every step through s.
template <class Config, class Add>
__device__ void for_each_summed(const Term& term, const TermLane<Config>& lane, Add add) {
  if constexpr (!Config::kSummed) {
    add(lane.offset, true);
  } else {
#pragma unroll 1
    for (uint32_t step = 0; step < term.num_sums; step += lane.sum_step) {
      const uint32_t wanted = step + lane.sum_first;
      const bool exists = wanted < term.num_sums;
      uint32_t offset[Config::kInputs];
#pragma unroll
      for (int i = 0; i < Config::kInputs; ++i) offset[i] = lane.offset[i];
      lane.add_offsets(term, term.num_result_dims, term.num_result_dims + term.num_sum_dims, exists ? wanted : 0,
                       offset);
      add(offset, exists);
    }
  }
}

// Folds a vector along s into its first place.
template <int kVector>
__device__ void fold_vector(float (&sum)[kVector]) {
  if constexpr (kVector == 4) sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Adds up what lanes that differ in the number bits `from` ... `to` - 1 hold. The whole warp takes part; all get the
// sum.
template <int kVector>
__device__ void sum_over_lanes(int from, int to, bool first_only, float (&sum)[kVector]) {
#pragma unroll 1
  for (int bit = from; bit < to; ++bit) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i == 0 || !first_only) sum[i] += __shfl_xor_sync(kFullMask, sum[i], 1 << bit);
    }
  }
}

// kVector values, or the first of them.
template <int kVector>
__device__ void store_results(void* out, DType type, int64_t index, bool first_only, const float (&values)[kVector]) {
  if (kVector == 1 || first_only) return store_scalar(out, type, index, values[0]);
  store_rounded_as(out, type, index, values);
}

template <int kInputs, bool kWinner, bool kSummed, class Run>
cudaError_t with_term_vector(const Term& term, Run run) {
  return term.vectors ? run(TermConfig<kInputs, kTermVector, kWinner, kSummed>{})
                      : run(TermConfig<kInputs, 1, kWinner, kSummed>{});
}

// Calls run(config) with the configuration that a term wants.
template <class Run>
cudaError_t with_term_config(const Term& term, Run run) {
  if (term.num_inputs == 3) return run(TermConfig<3, 1, true, true>{});
  if (term.num_sums != 1) return with_term_vector<2, true, true>(term, run);
  const bool winner = term.winner.data != nullptr;
  if (term.num_inputs == 2) {
    return winner ? with_term_vector<2, true, false>(term, run) : with_term_vector<2, false, false>(term, run);
  }
  return winner ? with_term_vector<1, true, false>(term, run) : with_term_vector<1, false, false>(term, run);
}

}  // namespace halfgnn::cuda
