// The kernel behind spmm where it is the maximum or minimum of copies. Include only where it is instantiated
// (spmm_<type>.cu) and where pieces are combined (spmm.cu).
//
// For each element of a row by itself, edges are ordered: nan is better than all else, the greater value is better than
// the lesser, and of equals the first edge is better. That order is total, so the result does not depend on how a row
// is divided. A minimum is a maximum of negated values.
#pragma once

#include <cmath>

#include "spmm.cuh"
#include "spmm.h"

namespace halfgnn::cuda {

// Stands for no edge; its value is -inf, so that it is worse than any edge.
constexpr uint32_t kNoPosition = 0xffffffffu;

struct ExtremumOut {
  Ids edge_ids;
  bool negate;
  void* out;
  DType out_type;
  void* arg;
  bool arg_is_int64;
};

struct ExtremumKernelArgs {
  Gather gather;
  ExtremumOut result;
  float* partial;              // best value of each slot and element
  uint32_t* partial_position;  // and its position
};

// The better of two edges takes the place of the second.
inline __device__ void take_better(float value, uint32_t position, float& best, uint32_t& best_position) {
  const bool is_nan = best != best;
  const bool wins = !is_nan && !(value <= best);
  const bool ties = is_nan ? value != value : value == best;
  if (wins || (ties && position < best_position)) {
    best = value;
    best_position = position;
  }
}

inline __device__ void flip_bits(uint32_t mask, unsigned short& word) { word ^= static_cast<unsigned short>(mask); }
inline __device__ void flip_bits(uint32_t mask, unsigned int& word) { word ^= mask; }
inline __device__ void flip_bits(uint32_t mask, uint2& word) {
  flip_bits(mask, word.x);
  flip_bits(mask, word.y);
}
inline __device__ void flip_bits(uint32_t mask, uint4& word) {
  flip_bits(mask, word.x);
  flip_bits(mask, word.y);
  flip_bits(mask, word.z);
  flip_bits(mask, word.w);
}
template <typename T>
constexpr uint32_t kSignBits = sizeof(T) == 2 ? 0x80008000u : 0x80000000u;

// Writes results that are read once, in as few accesses as possible.
template <int kCount>
__device__ void store_words(uint32_t* out, const uint32_t (&words)[kCount]) {
  if constexpr (kCount % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      __stcs(reinterpret_cast<uint4*>(out + i), make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]));
    }
  } else if constexpr (kCount % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) __stcs(reinterpret_cast<uint2*>(out + i), make_uint2(words[i], words[i + 1]));
  } else {
    static_assert(kCount == 1, "a power of 2");
    __stcs(out, words[0]);
  }
}

// Ids as elements i ... of an int32 or int64 array; -1 for kNoPosition.
template <int kCount>
__device__ void store_ids(void* out, bool is_int64, int64_t i, const uint32_t (&ids)[kCount]) {
  if (!is_int64) return store_words(static_cast<uint32_t*>(out) + i, ids);
  uint32_t words[2 * kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    words[2 * k] = ids[k];
    words[2 * k + 1] = ids[k] == kNoPosition ? kNoPosition : 0;
  }
  store_words(static_cast<uint32_t*>(out) + 2 * i, words);
}

// Elements i ... of the results, from best values and positions; 0 and -1 where there is no edge.
template <int kCount>
__device__ void store_extrema(const ExtremumOut& result, int64_t i, const float (&best)[kCount],
                              const uint32_t (&position)[kCount]) {
  float values[kCount];
  uint32_t ids[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const bool has_edge = position[k] != kNoPosition;
    values[k] = !has_edge ? 0.f : result.negate ? -best[k] : best[k];
    ids[k] = has_edge ? result.edge_ids.id(position[k]) : kNoPosition;
  }
  store_rounded_as(result.out, result.out_type, i, values);
  store_ids(result.arg, result.arg_is_int64, i, ids);
}

// One lane's share of a piece.
template <class Config>
struct ExtremumLane {
  static constexpr int kRepeat = Config::kRepeat;
  static constexpr int kVector = Config::kVector;
  using Row = Fragment<typename Config::Element, kVector>;

  const ExtremumKernelArgs& args;
  const LaneSlice<Config>& slice;
  const LaneSource<kRepeat>& feat;
  const Team team;
  float best[kRepeat][kVector];
  uint32_t position[kRepeat][kVector];  // of an edge in the piece

  // Every group starts with its first edge: an element that is -inf on all of them has that winner.
  __device__ void start(const TeamPiece& piece) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        best[r][i] = -INFINITY;
        position[r][i] = team.group < piece.count ? static_cast<uint32_t>(team.group) : kNoPosition;
      }
    }
  }

  // Looks at kEdges edges of every group, in ascending order, so that a later one wins only if it is greater. If the
  // batch is not kFull, places past the last edge look at that edge again, which changes nothing for the team.
  template <int kEdges, bool kFull>
  __device__ void look_at_batch(uint32_t ids, int start, int chunk, int last) {
    const uint32_t row_bytes = static_cast<uint32_t>(args.gather.num_vectors) * Config::kVectorBytes;
    const uint32_t flip = args.result.negate ? kSignBits<typename Config::Element> : 0;
    Row rows[kEdges][kRepeat];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + start + u * team.num_groups;
      const uint64_t offset = row_offset(__shfl_sync(kFullMask, ids, source), row_bytes);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) rows[u][r] = Row::load(feat.at(offset, r));
    }
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int edge = chunk + start + u * team.num_groups + team.group;
      const auto at = static_cast<uint32_t>(kFull ? edge : min(edge, last));
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

  // Ids are read once, coalesced, a team's lanes each one, a chunk ahead of their use, and handed out by shuffle.
  __device__ void look_at(const TeamPiece& piece) {
    const Lengths lengths(piece);
    if (lengths.longest == 0) return;
    const Ids& feat_rows = args.gather.feat_rows;
    uint32_t next = feat_rows.id(piece.position(0, team.lane));
    for (int chunk = 0; chunk < lengths.longest; chunk += team.size) {
      const uint32_t ids = next;
      if (chunk + team.size < lengths.longest) next = feat_rows.id(piece.position(chunk + team.size, team.lane));
      for_each_batch<Config::kUnroll>(team, lengths, chunk, [&](auto edges, auto full, int start) {
        look_at_batch<decltype(edges)::value, decltype(full)::value != 0>(ids, start, chunk, piece.count - 1);
      });
    }
  }

  // Every group ends up with the best of the team.
  __device__ void best_of_groups() {
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

  __device__ void store(const TeamPiece& piece) {
    const int64_t first = (int64_t{piece.line} * args.gather.num_vectors + slice.first) * kVector;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      if (!slice.has(r, args.gather)) break;
      const int64_t i = first + r * slice.stride * kVector;
#pragma unroll
      for (int k = 0; k < kVector; ++k) position[r][k] = piece.count > 0 ? piece.begin + position[r][k] : kNoPosition;
      if (piece.is_part) {
        store_rounded(args.partial + i, best[r]);
        store_words(args.partial_position + i, position[r]);
      } else {
        store_extrema(args.result, i, best[r], position[r]);
      }
    }
  }
};

// Before sm_90 less of what a warp shares is kept once a warp: with 64 registers a row would wait for another.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kExtremumMinBlocks = 7;
#else
constexpr int kExtremumMinBlocks = 8;
#endif

template <class Config>
__global__ void __launch_bounds__(kGatherThreads, kExtremumMinBlocks)
    spmm_extremum_kernel(const ExtremumKernelArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const LaneSlice<Config> slice(args.gather, lane);
  const auto feat = feat_source(args.gather, slice);
  for_each_piece(args.gather, lane, [&](const TeamPiece& piece, int log2_team) {
    ExtremumLane<Config> work{args, slice, feat, Team(args.gather, log2_team, lane), {}, {}};
    work.start(piece);
    work.look_at(piece);
    work.best_of_groups();
    if (piece.has_result() && work.team.group == 0) work.store(piece);
  });
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
    return args.out_len % count == 0 && is_aligned(shape.feat, count * static_cast<int64_t>(sizeof(T))) &&
           is_aligned(args.out, store_alignment(args.out_type, count)) && is_aligned(args.arg, arg_alignment);
  };
  if (fits(widest)) return launch_extremum<GatherConfig<T, widest, 1>>(args, kernel_args, shape, launch);
  if constexpr (widest == 8) {
    if (fits(2)) return launch_extremum<GatherConfig<T, 2, 4>>(args, kernel_args, shape, launch);
  }
  return launch_extremum<GatherConfig<T, 1, 4>>(args, kernel_args, shape, launch);
}

}  // namespace halfgnn::cuda
