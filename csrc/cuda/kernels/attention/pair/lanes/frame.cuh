// Where a lane of GATv2's and dot attention's kernel stands: its block among those of a slice, its part of a row, its
// edges of a chunk; and sums over the lanes that share one of these.
#pragma once

#include "../../../core/uniform.cuh"
#include "config.cuh"

namespace halfgnn::cuda {

// `count` positions from `begin`, at most one for each lane; the lane's column.
struct PairChunk {
  uint32_t column;
  uint32_t begin;
  int count;
  uint32_t edge;  // the lane's, where it is read
};

// kEdges edges of every group, from place `start` of a chunk. Of those of its group a lane owns kOwned: all, or one
// if lanes share a head. If the batch is not kFull, some of its places are past the last edge; they are read as that
// edge.
template <int kEdgesOfGroup, int kOwnedByLane, bool kIsFull>
struct PairBatch {
  static constexpr int kEdges = kEdgesOfGroup;
  static constexpr int kOwned = kOwnedByLane;
  static constexpr bool kFull = kIsFull;
  const PairChunk& chunk;
  int start;

  __device__ bool has(int place) const { return kFull || place < chunk.count; }
  __device__ int read(int place) const { return has(place) ? place : chunk.count - 1; }
  // All bits if it has the place, or none.
  __device__ uint32_t mask(int place) const { return kFull ? ~0u : static_cast<uint32_t>((place - chunk.count) >> 31); }
};

template <class Config>
class PairFrame {
 public:
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;
  static constexpr int kUnroll = Config::kUnroll;

  __device__ explicit PairFrame(const PairArgs& args)
      : args(args),
        work(args.layout, slice(args), lane()),
        log2_lanes_(kKeeps ? as_computed(args.layout.log2_lanes) : 0),
        owner_offset_(kKeeps ? as_computed(owner() << args.layout.log2_groups()) : 0) {}

  const PairArgs& args;
  const HeadLane work;

  __device__ static uint32_t block(const PairArgs& args) {  // among those of the slice
    return args.layout.by_slice ? blockIdx.x % args.blocks_per_slice
                                : blockIdx.x / static_cast<uint32_t>(args.layout.slices);
  }
  __device__ static int slice(const PairArgs& args) {
    return static_cast<int>(args.layout.by_slice ? blockIdx.x / args.blocks_per_slice
                                                 : blockIdx.x % static_cast<uint32_t>(args.layout.slices));
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x & (kWarpSize - 1)); }
  // The first unit of a warp; its next is num_warps further.
  __device__ static uint32_t first_unit(const PairArgs& args) {
    // Of one warp, the compiler knows that it is the same for all lanes.
    return Config::kWarps == 1 ? block(args) : block(args) * Config::kWarps + threadIdx.x / kWarpSize;
  }
  __device__ static uint32_t num_warps(const PairArgs& args) { return args.blocks_per_slice * Config::kWarps; }

  __device__ int log2_groups() const { return args.layout.log2_groups(); }
  __device__ int log2_lanes() const { return kKeeps ? log2_lanes_ : args.layout.log2_lanes; }
  __device__ int64_t statistic_at(uint32_t row) const {
    return static_cast<int64_t>(row) * args.layout.heads + work.read(args.layout);
  }
  // Of the lanes that have the same, the one that writes it. With two rows per edge it is worked out anew for each
  // result: otherwise it takes a register.
  __device__ bool writes_rows() const {
    return (Config::kTwoRows ? as_computed(work.group) : work.group) == 0 && work.exists(args.layout);
  }
  __device__ bool writes_statistics() const { return writes_rows() && work.own == 0; }

  // Calls use(r, i, element of the row) for the elements of a row that the lane writes.
  template <class Use>
  __device__ void for_each_element(int tile, const Use& use) const {
    if (!writes_rows()) return;
    const HeadVectors<kRepeat> vectors(args.layout, work, tile);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (r < vectors.count) use(r, i, vectors.index[r] * kVector + i);
      }
    }
  }

  // ---- Places of a chunk.

  // Edge u of the lane's group.
  template <class Batch>
  __device__ int place(const Batch& batch, int u) const {
    return batch.start + (u << log2_groups()) + work.group;
  }

  // Lanes of a head that own one edge each of a batch of kUnroll. If heads have fewer lanes, every lane owns all.
  __device__ int log2_owners() const { return log2_lanes() >= log2_ceil(kUnroll) ? log2_ceil(kUnroll) : 0; }
  __device__ int owner() const { return lane() & ((1 << log2_owners()) - 1); }
  // Edge i of those that the lane owns.
  template <class Batch>
  __device__ int owned_place(const Batch& batch, int i) const {
    if (kKeeps && Batch::kOwned < Batch::kEdges) return batch.start + owner_offset_ + work.group;
    return place(batch, Batch::kOwned == Batch::kEdges ? i : owner());
  }
  // Of the lanes that own the same edges, the one that writes what they have.
  template <class Batch>
  __device__ bool writes_owned(const Batch&) const {
    return work.exists(args.layout) && work.own == (Batch::kOwned < Batch::kEdges ? owner() : 0);
  }

  // ---- Lanes that share a head. Sums are made in a fixed order.

  // From all lanes' parts of all edges: the owners' sums.
  template <class Batch>
  __device__ void sum_up(const Batch&, float (&parts)[Batch::kEdges]) const {
    constexpr int kEdges = Batch::kEdges;
    if constexpr (Batch::kOwned == 1) {
      sum_over_head<(kEdges > 1 && Config::kKeepsProducts)>(parts, log2_lanes(), lane());
    } else {
#pragma unroll
      for (int step = 0; step < log2_ceil(kEdges) - 1; ++step) {  // others have enough lanes
        if (step < args.layout.log2_lanes) {
#pragma unroll
          for (int u = 0; u < kEdges; ++u) parts[u] += __shfl_xor_sync(kFullMask, parts[u], 1 << step);
        }
      }
    }
  }
  // From what the owners have, to all lanes' factors of all edges.
  template <class Batch>
  __device__ void hand_out(const Batch&, float (&factors)[Batch::kEdges]) const {
    constexpr int kEdges = Batch::kEdges;
    if constexpr (Batch::kOwned == kEdges) return;
    const float own = factors[0];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      factors[u] = Config::kKeepsProducts ? __shfl_sync(kFullMask, own, u, kEdges)
                                          : __shfl_sync(kFullMask, own, (lane() & ~(kEdges - 1)) | u);
    }
  }

  // The maximum over lanes that have different edges of a head, and over those that have the same.
  __device__ float max_over_edges(float value) const {
    const int first_group = kLog2Warp - log2_groups();
#pragma unroll
    for (int bit = 0; bit < kLog2Warp; ++bit) {
      const bool is_head = bit >= args.layout.log2_lanes && bit < first_group;
      const float other = __shfl_xor_sync(kFullMask, value, 1 << bit);
      value = is_head ? value : fmaxf(value, other);
    }
    return value;
  }
  // All lanes of a head end up with the sum of their parts.
  __device__ float sum_over_lanes(float part) const {
    for (int bit = 0; bit < args.layout.log2_lanes; ++bit) part += __shfl_xor_sync(kFullMask, part, 1 << bit);
    return part;
  }
  // All lanes of a head end up with the sum.
  __device__ float sum_over_owners(float value) const {
    for (int bit = 0; bit < log2_owners(); ++bit) value += __shfl_xor_sync(kFullMask, value, 1 << bit);
    return sum_over_groups(value);
  }
  __device__ float sum_over_groups(float value) const {
    for (int bit = kLog2Warp - log2_groups(); bit < kLog2Warp; ++bit)
      value += __shfl_xor_sync(kFullMask, value, 1 << bit);
    return value;
  }
  template <int kCount>
  __device__ void sum_over_groups(float (&values)[kCount]) const {
    for (int bit = kLog2Warp - log2_groups(); bit < kLog2Warp; ++bit) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] += __shfl_xor_sync(kFullMask, values[i], 1 << bit);
    }
  }

 private:
  // In registers of their own where there are some left: compared, values of a launch take two instructions, and what
  // is made of several is worked out anew in each batch.
  static constexpr bool kKeeps = Config::kForward && Config::kSplits;
  const int log2_lanes_;
  const int owner_offset_;  // of the place of the edge that the lane owns, if it owns one
};

}  // namespace halfgnn::cuda
