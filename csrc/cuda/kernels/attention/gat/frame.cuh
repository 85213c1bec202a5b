// Where a lane of GAT's kernels stands: its head, its part of a row, and which of its warp's edges are its own; and
// sums over the lanes that share a head.
#pragma once

#include "config.cuh"

namespace halfgnn::cuda {

template <class Config>
class GatFrame {
 public:
  using T = typename Config::Element;
  using Row = typename Config::Row;
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;

  // A slice is some heads and, of wide heads, a tile.
  __device__ GatFrame(const GatGather& gather, int slice, int lane) : gather(gather), lane(lane) {
    const HeadLayout& layout = gather.layout;
    const bool has_tiles = layout.tiles > 1;  // a division takes 20 instructions
    const int tile = has_tiles ? slice % layout.tiles : 0;
    const HeadLane work(layout, has_tiles ? slice / layout.tiles : slice, lane);
    const HeadVectors<kRepeat> vectors(layout, work, tile);
    head_ = work.read(layout);
    const int in_dot = work.exists(layout) ? vectors.count + 1 : 0;
    facts_ = tile << 5 | (work.exists(layout) && work.own == 0 ? 16 : 0) | (work.group == 0 ? 8 : 0) | in_dot;
#pragma unroll
    for (int r = 1; r < kRepeat; ++r) distance_[r - 1] = (vectors.index[r] - vectors.index[0]) * kVector;
    source_ = as_computed(static_cast<const char*>(gather.source) +
                          vectors.index[0] * static_cast<uint32_t>(kVector * sizeof(T)));
  }

  const GatGather& gather;
  const int lane;

  // ---- The division of a warp.

  __device__ int log2_lanes() const { return gather.layout.log2_lanes; }
  __device__ int log2_heads() const { return Config::kOneHead ? 0 : gather.layout.log2_heads; }
  __device__ int log2_groups() const { return kLog2Warp - log2_lanes() - log2_heads(); }
  __device__ int group() const { return lane >> (log2_lanes() + log2_heads()); }
  __device__ int head_in_warp() const { return lane >> log2_lanes() & ((1 << log2_heads()) - 1); }
  // Entries are divided among all lanes: in each step a lane works on one edge of its head.
  __device__ int log2_step() const { return kLog2Warp - log2_heads(); }  // edges of a step
  __device__ int in_step() const {                                       // which of them is this lane's
    if constexpr (Config::kOneHead) return lane;
    return group() << log2_lanes() | (lane & ((1 << log2_lanes()) - 1));
  }

  // ---- Its head.

  __device__ int head() const { return head_; }  // to read
  __device__ bool head_exists() const { return (facts_ & 7) != 0; }
  __device__ int tile() const { return facts_ >> 5; }
  // Whether this lane writes what there is once per row, head and tile, if its group writes.
  __device__ bool writes_head() const { return (facts_ & 16) != 0; }
  // The same for what there is once per row and head.
  __device__ bool writes_whole_head() const { return writes_head() && tile() == 0; }
  // Writes the results of a row that all groups share.
  __device__ bool is_first_group() const { return (facts_ & 8) != 0; }
  __device__ uint64_t head_of(uint32_t node) const {
    return static_cast<uint64_t>(node) * static_cast<uint32_t>(gather.layout.heads) + static_cast<uint32_t>(head_);
  }
  __device__ float load_logit_of(const void* logits, uint32_t node) const {
    return load_logit<T>(logits, gather.logit_is_float, head_of(node));
  }

  // ---- Its vectors of a row; padded heads have none.

  __device__ int num_read() const { return (facts_ & 7) - 1; }
  // Of a row that is gathered.
  __device__ const char* source_row(uint32_t node) const {
    return source_ + static_cast<uint64_t>(node) * (gather.row_elements * static_cast<uint32_t>(sizeof(T)));
  }
  // The lane's first element of a row, and how many elements further its r-th vector is.
  __device__ uint32_t first() const {
    return static_cast<uint32_t>(source_ - static_cast<const char*>(gather.source)) / sizeof(T);
  }
  __device__ uint32_t distance(int r) const { return r == 0 ? 0 : distance_[r - 1]; }
  // Calls store(r, element of a row) for the lane's vectors, if its group writes.
  template <class Store>
  __device__ void for_each_result(bool writes, const Store& store) const {
    const int count = writes ? num_read() : 0;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      if (r < count) store(r, first() + distance(r));
    }
  }
  __device__ void load_row(const void* data, uint32_t row, Row (&vectors)[kRepeat]) const {
    const T* start = static_cast<const T*>(data) + static_cast<uint64_t>(row) * gather.row_elements + first();
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) vectors[r] = Row::load(start + distance(r));
  }

  // ---- Over the lanes of a head, those of all groups, in a fixed order.

  // Of values that are not nan.
  __device__ float max_over_edges(float value) const {
    if (Config::kOneHead && HALFGNN_ARCH >= 800) {  // in the order of signed integers
      const int bits = __float_as_int(value);
      const int most = warp_max(bits ^ (bits >> 31 & 0x7fffffff));
      return __int_as_float(most ^ (most >> 31 & 0x7fffffff));
    }
    return over_edges(value, [](float a, float b) { return fmaxf(a, b); });
  }
  __device__ float sum_over_edges(float value) const {
    return over_edges(value, [](float a, float b) { return a + b; });
  }
  // Over the lanes of a head in one group.
  __device__ float max_over_lanes(float value) const {
    return over_lanes(value, [](float a, float b) { return fmaxf(a, b); });
  }
  __device__ float sum_over_lanes(float value) const {
    return over_lanes(value, [](float a, float b) { return a + b; });
  }

 private:
  template <class Operation>
  __device__ float over_lanes(float value, Operation operation) const {
#pragma unroll
    for (int step = 0; step < kLog2Warp; ++step) {
      if (step < log2_lanes()) value = operation(value, __shfl_xor_sync(kFullMask, value, 1 << step));
    }
    return value;
  }
  template <class Operation>
  __device__ float over_edges(float value, Operation operation) const {
    const int head_bits = ((1 << log2_heads()) - 1) << log2_lanes();
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      if ((head_bits & distance) == 0) value = operation(value, __shfl_xor_sync(kFullMask, value, distance));
    }
    return value;
  }

  int head_;
  // Packed, since they are rarely needed: from bit 5 on the tile; bit 4, writes_head(); bit 3, writes a row; below, how
  // many of its vectors exist, plus one, and 0 if the head does not.
  int facts_;
  uint32_t distance_[kRepeat > 1 ? kRepeat - 1 : 1];
  const char* source_;
};

}  // namespace halfgnn::cuda
