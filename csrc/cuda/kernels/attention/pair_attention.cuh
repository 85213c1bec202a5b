// The kernel behind GATv2 and dot attention. Include only where it is instantiated (<attention>_<type>.cu).
//
// A warp walks a row or a piece of one, and gathers rows of keys and values, several edges in flight. Lanes that share
// a head sum up their parts of the dots of all those edges together, so that a few lanes of a head end up with those of
// one edge each: the edge's owners. They work out what the edge's rows are multiplied by, once an edge and head, and
// hand it to all lanes, which add the rows that they still hold to the row's sums.
//
// Forward: softmax with a running maximum (see attention.cuh); each group of lanes has its own until the row ends.
// Backward: weights are exp(l_e - lse).
//
// Heads too wide for registers are walked in tiles, twice: first the dots are summed up in the workspace, then rows are
// added up by what they say.
#pragma once

#include <cfloat>

#include "pair_attention.h"

namespace halfgnn::cuda {

// Score<T, kVector, kRepeat>: how the logits of an attention come from keys.
template <template <typename, int, int> class ScoreOf, typename T, PairPass kPairPass, int kVectorElements,
          int kVectorsPerLane, bool kIsTiled>
struct PairConfig {
  using Element = T;
  static constexpr PairPass kPass = kPairPass;
  static constexpr int kVector = kVectorElements;
  static constexpr int kRepeat = kVectorsPerLane;
  static constexpr bool kTiled = kIsTiled;
  using Score = ScoreOf<T, kVector, kRepeat>;

  static constexpr bool kForward = kPass == PairPass::kForward;
  static constexpr bool kSumsValues = kPass != PairPass::kDestinations;
  static constexpr bool kSumsKeys = !kForward;
  static constexpr bool kWritesProducts = kSumsKeys && Score::kHasProducts;
  static constexpr bool kOwnKeyIsValue = Score::kKeyIsValue && kPass == PairPass::kSources;
  static constexpr bool kTwoRows = !Score::kKeyIsValue || kPass == PairPass::kSources;  // an edge

  static constexpr int kElements = kRepeat * kVector;
  static constexpr int kLaneBytes = kElements * static_cast<int>(sizeof(T));
  static constexpr bool kIsWide = is_wide_pair(kLaneBytes);
  static constexpr int kUnroll = pair_unroll(kLaneBytes, kTwoRows ? 2 : 1);
  static constexpr int kSums = (kSumsValues ? 1 : 0) + (kSumsKeys ? 1 : 0);
  static constexpr bool kRunsAreShared = !kIsWide;
  static constexpr int kWarps = pair_warps(kLaneBytes);
  static constexpr int kThreads = kWarps * kWarpSize;
  // Registers: 96 with one access a lane and row, 128 with several narrow ones, 255 where rows are wide.
  static constexpr int kMinBlocks = kIsWide ? 4 : kRepeat > 1 ? 4 : 5;
};

// What a walk over a row does with its edges.
enum class PairStep {
  kAll,
  kDots,  // sums up dots in the workspace
  kSums   // adds rows, by the dots from there
};

// Terms of a sum that a lane adds up before they join its total.
constexpr int kPairRun = 128;

// The same row, of which the compiler knows nothing: what is made of a row that stays the same it would rather make
// once for all edges, and keep in two or three times the registers.
template <typename T, int kVector>
__device__ Fragment<T, kVector> as_new(const Fragment<T, kVector>& row) {
  constexpr int kWords = Fragment<T, kVector>::kBytes / 4;
  if constexpr (kWords == 0) {
    return row;
  } else {
    struct Words {
      unsigned int value[kWords];
    };
    auto words = bits_as<Words>(row.word);
#ifdef __CUDA_ARCH__
#pragma unroll
    for (int i = 0; i < kWords; ++i) asm volatile("" : "+r"(words.value[i]));
#endif
    return {bits_as<typename Fragment<T, kVector>::Word>(words)};
  }
}

// Elements that are widened at a time.
template <int kVector>
constexpr int kPairWidth = kVector < 2 ? kVector : 2;

// Elements j * kPairWidth ... of what the fragment holds.
template <typename T, int kVector>
__device__ void widen_some(const Fragment<T, kVector>& row, int j, float (&values)[kPairWidth<kVector>]) {
  if constexpr (kVector == 1) {
    values[0] = row.value();
  } else {
    const auto pairs = bits_as<typename Fragment<T, kVector>::Pairs>(row.word);
    const float2 value = Convert<T>::widen(pairs.value[j]);
    values[0] = value.x;
    values[1] = value.y;
  }
}

// A lane's sums of the run that it is in. Registers are for rows in flight, so the sums lie in shared memory, those of
// a lane beside those of its neighbours, where a batch has enough edges to make up for the accesses.
template <class Config, bool kShared = Config::kRunsAreShared>
class PairRuns {
 public:
  static constexpr int kVector = Config::kVector;
  struct Shared {};
  __device__ explicit PairRuns(Shared&) {}
  __device__ void load(int s, int r, float (&sum)[kVector]) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] = sum_[s][r][i];
  }
  __device__ void store(int s, int r, const float (&sum)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum_[s][r][i] = sum[i];
  }

 private:
  float sum_[Config::kSums][Config::kRepeat][kVector];
};
template <class Config>
class PairRuns<Config, true> {
 public:
  static constexpr int kVector = Config::kVector;
  static constexpr int kAccess = kVector < 4 ? kVector : 4;
  static constexpr int kAccesses = kVector / kAccess;
  struct alignas(kAccess * sizeof(float)) Access {
    float value[kAccess];
  };
  using Shared = Access[Config::kSums][Config::kRepeat][kAccesses][Config::kThreads];

  __device__ explicit PairRuns(Shared& shared) : shared_(shared) {}
  __device__ void load(int s, int r, float (&sum)[kVector]) const {
#pragma unroll
    for (int a = 0; a < kAccesses; ++a) {
      const Access access = shared_[s][r][a][threadIdx.x];
#pragma unroll
      for (int i = 0; i < kAccess; ++i) sum[a * kAccess + i] = access.value[i];
    }
  }
  __device__ void store(int s, int r, const float (&sum)[kVector]) {
#pragma unroll
    for (int a = 0; a < kAccesses; ++a) {
      Access access;
#pragma unroll
      for (int i = 0; i < kAccess; ++i) access.value[i] = sum[a * kAccess + i];
      shared_[s][r][a][threadIdx.x] = access;
    }
  }

 private:
  Shared& shared_;
};

template <class Config>
class PairLane {
 public:
  using T = typename Config::Element;
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;
  static constexpr int kUnroll = Config::kUnroll;
  static constexpr bool kForward = Config::kForward;
  using Row = Fragment<T, kVector>;
  using Runs = PairRuns<Config>;
  // What a lane rarely needs, in shared memory, beside that of its neighbours: the totals of the runs before the one
  // that it is in, forward relative to `maximum`, and what belongs to the row.
  struct Totals {
    float rows[Config::kSums][Config::kElements][Config::kThreads];
    float factors[Config::kThreads];
    float maximum[kForward ? Config::kThreads : 1];
    DestinationRecord record[Config::kPass == PairPass::kDestinations ? Config::kThreads : 1];
    uint32_t dropped[Config::kThreads];  // by the edge in the lane's place of a chunk
  };
  using Products = float[Config::kWritesProducts && !Config::kTiled ? Config::kElements : 1][Config::kThreads];

  __device__ PairLane(const PairArgs& args, typename Runs::Shared& runs, Totals& totals, Products& products)
      : args_(args),
        work_(args.layout, slice(args), lane()),
        totals_(totals),
        products_(products),
        ids_{0, 0},
        ids_begin_(~0u),
        runs_(runs) {
    if constexpr (Config::kWritesProducts) clear_products();
  }

  // The first unit of a warp; its next is num_warps further.
  static __device__ uint32_t first_unit(const PairArgs& args) {
    return block(args) * Config::kWarps + threadIdx.x / kWarpSize;
  }
  static __device__ uint32_t num_warps(const PairArgs& args) { return args.blocks_a_slice * Config::kWarps; }

  // The whole warp takes part, with one piece.
  __device__ void run(const RowPiece& piece) {
    start_row(piece);
    if constexpr (Config::kTiled) {
      const int tiles = args_.layout.tiles;
      for (int tile = 0; tile < tiles; ++tile) walk<PairStep::kDots>(piece, tile);
      __syncwarp();  // those who share a head read what one of them wrote
      if constexpr (kForward) maximum_ = max_over_edges(maximum_);
      for (int tile = 0; tile < tiles; ++tile) {
        walk<PairStep::kSums>(piece, tile);
        finish(piece, tile);
      }
      __syncwarp();
    } else {
      walk<PairStep::kAll>(piece, 0);
      finish(piece, 0);
    }
  }

  // Adds up the products of the block's warps. The whole block takes part, once all rows are done.
  __device__ void write_products() const {
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    for_each_element(0, [&](int r, int i, uint32_t at) {
      const int element = r * kVector + i;
      if (element % Config::kWarps != warp) return;
      float sum = 0.f;
#pragma unroll
      for (int w = 0; w < Config::kWarps; ++w) sum += products_[element][w * kWarpSize + lane()];
      args_.products[static_cast<int64_t>(block(args_)) * args_.row_elements + at] = sum;
    });
  }

 private:
  static constexpr bool kReadsOwnValue = !kForward && !Config::kOwnKeyIsValue;
  static constexpr int kKeySum = Config::kSums - 1;  // the other is the first

  __device__ static uint32_t block(const PairArgs& args) {  // among those of the slice
    return args.layout.by_slice ? blockIdx.x % args.blocks_a_slice
                                : blockIdx.x / static_cast<uint32_t>(args.layout.slices);
  }
  __device__ static int slice(const PairArgs& args) {
    return static_cast<int>(args.layout.by_slice ? blockIdx.x / args.blocks_a_slice
                                                 : blockIdx.x % static_cast<uint32_t>(args.layout.slices));
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x & (kWarpSize - 1)); }
  __device__ int log2_groups() const { return args_.layout.log2_groups(); }
  __device__ int64_t statistic_at(uint32_t row) const {
    return static_cast<int64_t>(row) * args_.layout.heads + work_.read(args_.layout);
  }
  // Of those that have the same, the one that writes it.
  __device__ bool writes_rows() const { return work_.group == 0 && work_.exists(args_.layout); }
  __device__ bool writes_statistics() const { return writes_rows() && work_.own == 0; }

  // Lanes of a head that own one edge each of a batch of kUnroll; where heads have fewer lanes, every lane owns all.
  __device__ int log2_owners() const { return args_.layout.log2_lanes >= log2_ceil(kUnroll) ? log2_ceil(kUnroll) : 0; }
  __device__ int owner() const { return lane() & ((1 << log2_owners()) - 1); }
  // Place i of those that the lane owns, kOwned a batch.
  template <int kEdges, int kOwned>
  __device__ int place_of(int start, int i) const {
    const int u = kOwned == kEdges ? i : owner();
    return start + (u << log2_groups()) + work_.group;
  }

  // ---- What belongs to a row.

  __device__ void start_row(const RowPiece& piece) {
    maximum_ = kLowestLogit;
    if constexpr (Config::kPass == PairPass::kDestinations) totals_.record[threadIdx.x] = load_record(piece.row);
  }
  __device__ DestinationRecord load_record(uint32_t row) const {
    const float2 record = __ldg(reinterpret_cast<const float2*>(args_.records + statistic_at(row)));
    return {record.x, record.y};
  }

  __device__ void load_own(const RowPiece& piece, int tile) {
    const HeadVectors<kRepeat> vectors(args_.layout, work_, tile);
    tile_ = tile;
    in_dot_ = vectors.count;
    constexpr auto kSize = static_cast<uint32_t>(sizeof(T));
    const uint64_t row = static_cast<uint64_t>(piece.row) * (args_.row_elements * kSize);
    score_.load(args_, static_cast<const char*>(args_.own_key) + row, vectors);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      const uint32_t at = vectors.index[r] * (kVector * kSize);
      key_[r] = as_computed(static_cast<const char*>(args_.key) + at);
      if constexpr (Config::kTwoRows) value_[r] = as_computed(static_cast<const char*>(args_.value) + at);
      if constexpr (kReadsOwnValue) own_value_[r] = Row::load(static_cast<const char*>(args_.own_value) + row + at);
    }
  }

  __device__ void clear_sums() {
    constexpr float zeros[kVector] = {};
#pragma unroll
    for (int s = 0; s < Config::kSums; ++s) {
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) runs_.store(s, r, zeros);
    }
    factor_sum_ = 0.f;
    has_total_ = false;
  }

  // ---- Edges.

  template <PairStep kStep>
  __device__ void walk(const RowPiece& piece, int tile) {
    load_own(piece, tile);
    clear_sums();
    const int log2_group = log2_groups(), groups = 1 << log2_group;
    const uint32_t run_mask = (kPairRun << log2_group) - 1;  // the first run is the shorter
    if (!piece.is_empty() && ids_begin_ != piece.begin) load_ids(piece.begin);
    for (uint32_t begin = piece.begin; begin < piece.end; begin += kWarpSize) {
      const uint32_t column = ids_.column, edge = ids_.edge;
      const int count = piece.end - begin < kWarpSize ? static_cast<int>(piece.end - begin) : kWarpSize;
      load_ids(begin + count);  // a chunk ahead: the next row starts where this one ends
      if (args_.dropout.is_on()) keep_dropped(edge);
      const Chunk chunk{column, begin, count};
      int start = 0;
      for (; start + (kUnroll << log2_group) <= chunk.count; start += kUnroll << log2_group) {
        add_batch<kStep, kUnroll, true>(chunk, start);
      }
      if (kUnroll > 1 && start + groups < chunk.count) {
        add_batch<kStep, kUnroll, false>(chunk, start);
      } else if (start < chunk.count) {  // one edge a group
        add_batch<kStep, 1, false>(chunk, start);
      }
      if (kStep != PairStep::kDots && piece.end - begin > kWarpSize &&
          ((piece.end - begin - 1) & run_mask) < kWarpSize) {
        end_run(false);
      }
    }
  }
  __device__ void load_ids(uint32_t begin) {
    ids_begin_ = begin;
    ids_.load(args_.units.rows, args_.columns, args_.edge_ids, args_.dropout.is_on(), begin, lane());
  }

  // `count` positions from `begin`; the lane's column.
  struct Chunk {
    uint32_t column;
    uint32_t begin;
    int count;
  };

  // Takes kEdges edges of every group, from place `start` of a chunk. All loads are issued before the first use. If the
  // batch is not kFull, a place past the last edge reads that edge's rows again and adds 0.
  template <PairStep kStep, int kEdges, bool kFull>
  __device__ void add_batch(const Chunk& chunk, int start) {
    constexpr bool kNeedsDots = kStep != PairStep::kSums, kNeedsSums = kStep != PairStep::kDots;
    constexpr bool kNeedsKeys = kNeedsDots || Config::kSumsKeys || !Config::kTwoRows;
    constexpr bool kNeedsValues = Config::kTwoRows && (Config::kSumsValues ? kNeedsSums || !kForward : kNeedsDots);
    Row keys[kEdges][kRepeat], values[Config::kTwoRows ? kEdges : 1][kRepeat];
    uint32_t columns[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      columns[u] = __shfl_sync(kFullMask, chunk.column, place_to_read<kFull>(chunk, start, u));
    }
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const uint64_t row = static_cast<uint64_t>(columns[u]) * (args_.row_elements * static_cast<uint32_t>(sizeof(T)));
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        if constexpr (kNeedsKeys) keys[u][r] = Row::load(key_[r] + row);
        if constexpr (kNeedsValues) values[u][r] = Row::load(value_[r] + row);
      }
    }
    Factors<kEdges> factors;
    const bool shares = kEdges > 1 && log2_owners() > 0;
    if constexpr (Config::kPass == PairPass::kSources && kNeedsDots) {
      shares ? load_records<kEdges, 1>(chunk, start, factors) : load_records<kEdges, kEdges>(chunk, start, factors);
    }
    if constexpr (!kFull) {
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        const bool keep = start + (u << log2_groups()) + work_.group < chunk.count;
#pragma unroll
        for (int r = 0; r < kRepeat; ++r) {
          if constexpr (kNeedsKeys) keys[u][r].keep_if(keep);
          if constexpr (kNeedsValues) values[u][r].keep_if(keep);
        }
      }
    }
    if constexpr (kNeedsDots) find_dots<kEdges>(keys, values, factors);
    const float rescale = shares ? weigh<kStep, kEdges, 1, kFull>(chunk, start, factors)
                                 : weigh<kStep, kEdges, kEdges, kFull>(chunk, start, factors);
    if constexpr (kNeedsSums) add_rows<kEdges>(keys, values, factors, rescale);
  }

  // What a lane holds of the edges of a batch.
  template <int kEdges>
  struct Factors {
    // Its parts of dots; of the edges that it owns, dots, then what values and keys are multiplied by; at last those of
    // all edges.
    float value[kEdges];
    float key[kEdges];
    DestinationRecord record[kEdges];  // of the destinations of those that it owns
  };

  template <bool kFull>
  __device__ int place_to_read(const Chunk& chunk, int start, int u) const {
    const int place = start + (u << log2_groups()) + work_.group;
    return kFull || place < chunk.count ? place : chunk.count - 1;
  }

  template <int kEdges, int kOwned>
  __device__ void load_records(const Chunk& chunk, int start, Factors<kEdges>& factors) const {
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const int source = owned_place<kEdges, kOwned>(chunk, start, i);
      factors.record[i] = load_record(__shfl_sync(kFullMask, chunk.column, source));
    }
  }
  // Where in the chunk an edge is that the lane owns; of one past the last, the last.
  template <int kEdges, int kOwned>
  __device__ int owned_place(const Chunk& chunk, int start, int i) const {
    const int place = place_of<kEdges, kOwned>(start, i);
    return place < chunk.count ? place : chunk.count - 1;
  }

  // Writes down what the lane's edge drops: a bit for each head that the warp covers. For the whole chunk, before rows
  // are in flight: it takes many registers for a while.
  __device__ void keep_dropped(uint32_t edge) {
    const int first = work_.head & ~in_warp_mask(), last = first + in_warp_mask();
    uint32_t dropped = 0;
#pragma unroll 1
    for (int quad = first >> 2; quad <= last >> 2; ++quad) {
      const uint32_t bits = args_.dropout.dropped(edge, static_cast<uint32_t>(quad));
      dropped |= 4 * quad >= first ? bits << (4 * quad - first) : bits >> (first - 4 * quad);
    }
    __syncwarp();
    totals_.dropped[threadIdx.x] = dropped;
    __syncwarp();
  }
  __device__ int in_warp_mask() const { return (1 << args_.layout.log2_heads) - 1; }
  // m_e of an edge that the lane owns.
  template <int kEdges, int kOwned>
  __device__ float multiplier(const Chunk& chunk, int start, int i) const {
    if (!args_.dropout.is_on()) return 1.f;
    const uint32_t first_of_warp = threadIdx.x & ~(kWarpSize - 1u);
    const uint32_t dropped = totals_.dropped[first_of_warp + owned_place<kEdges, kOwned>(chunk, start, i)];
    return (dropped >> (work_.head & in_warp_mask()) & 1) != 0 ? 0.f : args_.dropout.scale;
  }

  // This lane's parts of the dots. Edges come innermost: then little of the row's own is widened at any time.
  template <int kEdges>
  __device__ void find_dots(const Row (&keys)[kEdges][kRepeat],
                            const Row (&values)[Config::kTwoRows ? kEdges : 1][kRepeat], Factors<kEdges>& factors) {
    constexpr int kWidth = kPairWidth<kVector>;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float key_parts[kEdges] = {}, value_parts[kEdges] = {};
      const auto own_key = score_.own(r);
      Row own_row;
      if constexpr (kReadsOwnValue) own_row = as_new(own_value_[r]);
#pragma unroll
      for (int j = 0; j < kVector / kWidth; ++j) {
        const auto own = own_key.widen(args_, j);
        float own_value[kWidth];
        if constexpr (kReadsOwnValue) {
          widen_some(own_row, j, own_value);
        } else {
#pragma unroll
          for (int i = 0; i < kWidth; ++i) own_value[i] = own.key[i];
        }
#pragma unroll
        for (int u = 0; u < kEdges; ++u) {
          float key[kWidth], value[kWidth];
          widen_some(keys[u][r], j, key);
          score_.add(own, key, key_parts[u]);
          if constexpr (!kForward) {
            widen_some(Config::kTwoRows ? values[Config::kTwoRows ? u : 0][r] : keys[u][r], j, value);
#pragma unroll
            for (int i = 0; i < kWidth; ++i) value_parts[u] = fmaf(own_value[i], value[i], value_parts[u]);
          }
        }
      }
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        const float key_part = r < in_dot_ ? score_.logit(args_, key_parts[u]) : 0.f;
        const float value_part = r < in_dot_ ? value_parts[u] : 0.f;
        factors.key[u] = r == 0 ? key_part : factors.key[u] + key_part;
        factors.value[u] = r == 0 ? value_part : factors.value[u] + value_part;
      }
    }
  }

  // Sums up dots, turns them into factors, and hands these to all lanes. What the sums so far are multiplied by.
  template <PairStep kStep, int kEdges, int kOwned, bool kFull>
  __device__ float weigh(const Chunk& chunk, int start, Factors<kEdges>& factors) {
    if constexpr (kStep == PairStep::kSums) {
      read_dots<kEdges, kOwned>(chunk, start, factors);
    } else {
      sum_up<kEdges, kOwned>(factors.key);
      if constexpr (!kForward) sum_up<kEdges, kOwned>(factors.value);
      if constexpr (kStep == PairStep::kDots) {
        keep_dots<kEdges, kOwned>(chunk, start, factors);
        return 1.f;
      }
    }
    const bool counts = kEdges == kUnroll || owner() == 0;  // of a single edge all lanes have the dot
    float rescale = 1.f;
    if constexpr (kForward && kStep == PairStep::kAll)
      rescale = raise_maximum<kEdges, kOwned, kFull>(chunk, start, factors);
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const bool keep = kFull || place_of<kEdges, kOwned>(start, i) < chunk.count;
      if constexpr (kForward) {
        const float weight = keep ? exp_of_difference<T>(factors.key[i] - maximum_) : 0.f;
        factor_sum_ += counts ? weight : 0.f;
        factors.value[i] = weight * multiplier<kEdges, kOwned>(chunk, start, i);
      } else {
        if constexpr (kStep == PairStep::kAll) find_gradient(i, multiplier<kEdges, kOwned>(chunk, start, i), factors);
        factors.key[i] = keep ? factors.key[i] : 0.f;
        factors.value[i] = keep ? factors.value[i] : 0.f;
        factor_sum_ += counts ? factors.key[i] : 0.f;
      }
    }
    if constexpr (Config::kSumsValues) hand_out<kEdges, kOwned>(factors.value);
    if constexpr (Config::kSumsKeys) hand_out<kEdges, kOwned>(factors.key);
    return rescale;
  }

  // From all lanes' parts of all edges: the owners' sums.
  template <int kEdges, int kOwned>
  __device__ void sum_up(float (&parts)[kEdges]) const {
    if constexpr (kOwned == 1) {
      sum_over_head(parts, args_.layout.log2_lanes, lane());
    } else {
#pragma unroll
      for (int step = 0; step < log2_ceil(kEdges) - 1; ++step) {  // others have enough lanes
        if (step < args_.layout.log2_lanes) {
#pragma unroll
          for (int u = 0; u < kEdges; ++u) parts[u] += __shfl_xor_sync(kFullMask, parts[u], 1 << step);
        }
      }
    }
  }
  // From what the owners have, to all lanes' factors of all edges.
  template <int kEdges, int kOwned>
  __device__ void hand_out(float (&factors)[kEdges]) const {
    if constexpr (kOwned == kEdges) return;
    const float own = factors[0];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      factors[u] = __shfl_sync(kFullMask, own, (lane() & ~(kEdges - 1)) | u);
    }
  }

  template <int kEdges, int kOwned, bool kFull>
  __device__ float raise_maximum(const Chunk& chunk, int start, const Factors<kEdges>& factors) {
    float maximum = maximum_;
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const bool keep = kFull || place_of<kEdges, kOwned>(start, i) < chunk.count;
      maximum = fmaxf(maximum, keep ? factors.key[i] : kLowestLogit);
    }
    if constexpr (kOwned < kEdges) {
#pragma unroll
      for (int step = 0; step < log2_ceil(kEdges); ++step) {
        maximum = fmaxf(maximum, __shfl_xor_sync(kFullMask, maximum, 1 << step));
      }
    }
    const float rescale = exp_of_difference<T>(maximum_ - maximum);
    factor_sum_ *= rescale;
    maximum_ = maximum;
    return rescale;
  }

  static __device__ uint32_t own_record() { return Config::kPass == PairPass::kDestinations ? threadIdx.x : 0; }

  // From the dots of an edge: what its rows are multiplied by.
  template <int kEdges>
  __device__ void find_gradient(int i, float times, Factors<kEdges>& factors) const {
    const DestinationRecord record =
        Config::kPass == PairPass::kSources ? factors.record[i] : totals_.record[own_record()];
    const float weight = exp_of_difference<T>(factors.key[i] - record.lse);
    factors.key[i] = weight * fmaf(times, factors.value[i], -record.delta);
    factors.value[i] = weight * times;
  }

  // sums = rescale * sums + factors * rows
  template <int kEdges>
  __device__ void add_rows(const Row (&keys)[kEdges][kRepeat],
                           const Row (&values)[Config::kTwoRows ? kEdges : 1][kRepeat], const Factors<kEdges>& factors,
                           float rescale) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      // The batch is summed before it joins the run: a shorter run, so a smaller error, at no cost.
      float batch[kVector];
      if constexpr (Config::kSumsValues) {
#pragma unroll
        for (int u = 0; u < kEdges; ++u) {
          float row[kVector];
          if constexpr (Config::kTwoRows) {
            values[u][r].widen(row);
          } else {
            keys[u][r].widen(row);
          }
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            batch[i] = u == 0 ? factors.value[u] * row[i] : fmaf(factors.value[u], row[i], batch[i]);
          }
        }
        join_run(0, r, rescale, batch);
      }
      if constexpr (Config::kSumsKeys) {
#pragma unroll
        for (int u = 0; u < kEdges; ++u) score_.add_gradient(u == 0, factors.key[u], keys[u][r], r, batch);
        join_run(kKeySum, r, 1.f, batch);
      }
    }
  }
  __device__ void join_run(int s, int r, float rescale, const float (&batch)[kVector]) {
    float sum[kVector];
    runs_.load(s, r, sum);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] = kForward ? fmaf(sum[i], rescale, batch[i]) : sum[i] + batch[i];
    runs_.store(s, r, sum);
  }

  // ---- Dots in the workspace, of tiles. One of the lanes that own an edge
  // writes its dots, the same in every tile.

  __device__ float* dots_at(const Chunk& chunk, int place) const {
    constexpr int kDots = kForward ? 1 : 2;
    const uint64_t edge = static_cast<uint64_t>(chunk.begin) + place;
    return args_.dots + (edge * args_.layout.heads + work_.read(args_.layout)) * kDots;
  }
  template <int kEdges, int kOwned>
  __device__ void keep_dots(const Chunk& chunk, int start, Factors<kEdges>& factors) {
    const bool is_first = tile_ == 0, is_last = tile_ + 1 == args_.layout.tiles;
    const bool writes = work_.exists(args_.layout) && work_.own == (kOwned < kEdges ? owner() : 0);
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const int place = place_of<kEdges, kOwned>(start, i);
      const float times = !kForward && is_last ? multiplier<kEdges, kOwned>(chunk, start, i) : 1.f;
      if (!writes || place >= chunk.count) continue;
      float* dots = dots_at(chunk, place);
      if (!is_first) {
        factors.key[i] += dots[0];
        if constexpr (!kForward) factors.value[i] += dots[1];
      }
      if (is_last) {
        if constexpr (kForward) {
          maximum_ = fmaxf(maximum_, factors.key[i]);
        } else {
          find_gradient(i, times, factors);
        }
      }
      dots[0] = factors.key[i];
      if constexpr (!kForward) dots[1] = factors.value[i];
    }
  }
  template <int kEdges, int kOwned>
  __device__ void read_dots(const Chunk& chunk, int start, Factors<kEdges>& factors) const {
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const int place = place_of<kEdges, kOwned>(start, i);
      const float* dots = dots_at(chunk, place < chunk.count ? place : chunk.count - 1);
      factors.key[i] = dots[0];
      if constexpr (!kForward) factors.value[i] = dots[1];
    }
  }

  // ---- The end of a run and of a row.

  // The run joins the total, and what rounding that addition lost starts the next run: the error of a sum is about that
  // of a run, however long it is. At the end the run takes the total.
  __device__ void end_run(bool is_last) {
    float rescale = 1.f;
    if constexpr (kForward) {
      if (has_total_) rescale = exp_of_difference<T>(totals_.maximum[threadIdx.x] - maximum_);
      totals_.maximum[threadIdx.x] = maximum_;
    }
    join(is_last, rescale, totals_.factors[threadIdx.x], factor_sum_);
#pragma unroll
    for (int s = 0; s < Config::kSums; ++s) {
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        float sum[kVector];
        runs_.load(s, r, sum);
#pragma unroll
        for (int i = 0; i < kVector; ++i) join(is_last, rescale, totals_.rows[s][r * kVector + i][threadIdx.x], sum[i]);
        runs_.store(s, r, sum);
      }
    }
    has_total_ = true;
  }
  __device__ void join(bool is_last, float rescale, float& total, float& run) const {
    // Multiply-adds are written out: were only one of the two contracted, `lost` would hold the product's rounding too.
    const float before = has_total_ ? total : 0.f, sum = fmaf(before, rescale, run);
    const float lost = run - fmaf(-before, rescale, sum);
    run = is_last ? sum : fabsf(sum) <= FLT_MAX ? lost : 0.f;  // inf - inf would be nan
    total = sum;
  }

  // The maximum over lanes that have different edges of a head, and over those that have the same.
  __device__ float max_over_edges(float value) const {
    const int first_group = 5 - log2_groups();
    for (int bit = 0; bit < 5; ++bit) {
      if (bit >= args_.layout.log2_lanes && bit < first_group) continue;  // other heads
      value = fmaxf(value, __shfl_xor_sync(kFullMask, value, 1 << bit));
    }
    return value;
  }
  // In a fixed order; all lanes of a head end up with the sum.
  __device__ float sum_over_owners(float value) const {
    for (int bit = 0; bit < log2_owners(); ++bit) value += __shfl_xor_sync(kFullMask, value, 1 << bit);
    return sum_over_groups(value);
  }
  __device__ float sum_over_groups(float value) const {
    for (int bit = 5 - log2_groups(); bit < 5; ++bit) value += __shfl_xor_sync(kFullMask, value, 1 << bit);
    return value;
  }
  __device__ void sum_over_groups(float (&values)[kVector]) const {
    for (int bit = 5 - log2_groups(); bit < 5; ++bit) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] += __shfl_xor_sync(kFullMask, values[i], 1 << bit);
    }
  }

  __device__ void finish(const RowPiece& piece, int tile) {
    if (has_total_) end_run(true);
    if constexpr (kForward) {
      store_results(piece, tile);
    } else {
      store_gradients(piece, tile);
    }
  }

  __device__ void store_results(const RowPiece& piece, int tile) {
    const float maximum = max_over_edges(maximum_), rescale = exp_of_difference<T>(maximum_ - maximum);
    const float sum = sum_over_owners(factor_sum_ * rescale);
    const float factor = piece.is_whole_row() ? reciprocal_of_sum(sum, !piece.is_empty()) : 1.f;
    const HeadVectors<kRepeat> vectors(args_.layout, work_, tile);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float values[kVector];
      runs_.load(0, r, values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] *= rescale;
      sum_over_groups(values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] *= factor;
      if (!writes_rows() || r >= vectors.count) continue;
      const int64_t at = vectors.index[r] * kVector;
      if (piece.is_whole_row()) {
        store_precise<T>(args_.out, static_cast<int64_t>(piece.row) * args_.row_elements + at, values);
      } else {
        store_rounded(args_.partials.vector(piece.slot, args_.row_elements, 0) + at, values);
      }
    }
    if (tile > 0 || !writes_rows() || work_.own != 0) return;
    if (!piece.is_whole_row()) {
      args_.partials.store_sums(piece.slot, args_.layout.heads, work_.head, {maximum, sum, 0.f, 0.f});
    } else if (args_.lse != nullptr) {
      args_.lse[statistic_at(piece.row)] = lse_of(maximum, sum, !piece.is_empty());
    }
  }

  __device__ void store_gradients(const RowPiece& piece, int tile) {
    const float factor_sum = Config::Score::kNeedsFactorSum ? sum_over_owners(factor_sum_) : 0.f;
    const HeadVectors<kRepeat> vectors(args_.layout, work_, tile);
    const int64_t first = (piece.is_whole_row() ? static_cast<int64_t>(piece.row) : piece.slot) * args_.row_elements;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float keys[kVector], values[kVector];
      runs_.load(kKeySum, r, keys);
      sum_over_groups(keys);
      if constexpr (Config::kSumsValues) {
        runs_.load(0, r, values);
        sum_over_groups(values);
      }
      if (!writes_rows() || r >= vectors.count) continue;
      const uint32_t at = vectors.index[r] * kVector;
      float product[kVector];
      score_.finish(args_, factor_sum, r, keys, product);
      if constexpr (Config::kWritesProducts) add_products(r, at, product);
      if constexpr (Config::kOwnKeyIsValue) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) keys[i] += values[i];
      } else if constexpr (Config::kSumsValues) {
        store_gradient(piece, args_.grad_value, args_.partial_value, first + at, values);
      }
      store_gradient(piece, args_.grad_key, args_.partial_key, first + at, keys);
    }
  }
  __device__ static void store_gradient(const RowPiece& piece, void* gradient, float* partial, int64_t at,
                                        const float (&values)[kVector]) {
    if (piece.is_whole_row()) {
      store_rounded(static_cast<T*>(gradient) + at, values);
    } else {
      store_rounded(partial + at, values);
    }
  }

  // ---- Products of own keys and gradients: rows of a warp in shared memory
  // or, with tiles, in the workspace.

  // Calls use(r, i, element of the row) for those that the lane stores.
  template <class Use>
  __device__ void for_each_element(int tile, const Use& use) const {
    if (!writes_rows()) return;
    const HeadVectors<kRepeat> vectors(args_.layout, work_, tile);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (r < vectors.count) use(r, i, vectors.index[r] * kVector + i);
      }
    }
  }
  __device__ float* products_of_warp() const {
    return args_.products + static_cast<int64_t>(first_unit(args_)) * args_.row_elements;
  }
  __device__ void clear_products() {
    if constexpr (Config::kTiled) {
      for (int tile = 0; tile < args_.layout.tiles; ++tile) {
        for_each_element(tile, [&](int, int, uint32_t at) { products_of_warp()[at] = 0.f; });
      }
    } else {
#pragma unroll
      for (int i = 0; i < Config::kElements; ++i) products_[i][threadIdx.x] = 0.f;
    }
  }
  __device__ void add_products(int r, uint32_t at, const float (&product)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if constexpr (Config::kTiled) {
        products_of_warp()[at + i] += product[i];
      } else {
        products_[r * kVector + i][threadIdx.x] += product[i];
      }
    }
  }

  const PairArgs& args_;
  const HeadLane work_;
  Totals& totals_;
  Products& products_;
  ChunkIds ids_;  // of the next chunk
  uint32_t ids_begin_;

  // Of the row, or the tile of it.
  typename Config::Score score_;
  Row own_value_[kReadsOwnValue ? kRepeat : 1];
  const char* key_[kRepeat];
  const char* value_[Config::kTwoRows ? kRepeat : 1];
  int in_dot_;
  int tile_;

  // Sums; forward: relative to maximum_.
  Runs runs_;
  float factor_sum_;  // over owned edges: of weights, or of what keys are
                      // multiplied by
  float maximum_;
  bool has_total_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) pair_attention_kernel(const PairArgs args) {
  __shared__ typename PairLane<Config>::Runs::Shared runs;
  __shared__ typename PairLane<Config>::Totals totals;
  __shared__ typename PairLane<Config>::Products products;
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  PairLane<Config> work(args, runs, totals, products);
  uint32_t unit = PairLane<Config>::first_unit(args);
  while (unit < args.units.num_units) {
    for_each_piece(args.units, unit, lane, [&](const RowPiece& piece) { work.run(piece); });
    if constexpr (!Config::kWritesProducts) break;
    unit += PairLane<Config>::num_warps(args);
  }
  if constexpr (Config::kWritesProducts && !Config::kTiled) work.write_products();
}

template <class Config>
cudaError_t launch_pair(const PairArgs& args, const Launch& launch) {
  const int64_t blocks = static_cast<int64_t>(args.blocks_a_slice) * args.layout.slices;
  return cuda::launch(pair_attention_kernel<Config>, blocks, Config::kThreads, launch.stream, args);
}

template <template <typename, int, int> class Score, typename T, PairPass kPass>
cudaError_t pair_attention_pass(const PairArgs& args, const PairShape& shape, const Launch& launch) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  if (shape.vector == widest) {
    if (shape.repeat == 4) return launch_pair<PairConfig<Score, T, kPass, widest, 4, false>>(args, launch);
    return launch_pair<PairConfig<Score, T, kPass, widest, 1, false>>(args, launch);
  }
  if (shape.tiled) return launch_pair<PairConfig<Score, T, kPass, 1, 4, true>>(args, launch);
  return launch_pair<PairConfig<Score, T, kPass, 1, 4, false>>(args, launch);
}

template <template <typename, int, int> class Score, typename T>
cudaError_t pair_attention(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  switch (pass) {
    case PairPass::kForward: return pair_attention_pass<Score, T, PairPass::kForward>(args, shape, launch);
    case PairPass::kDestinations: return pair_attention_pass<Score, T, PairPass::kDestinations>(args, shape, launch);
    default: return pair_attention_pass<Score, T, PairPass::kSources>(args, shape, launch);
  }
}

}  // namespace halfgnn::cuda
