// What the lanes of a warp do in a layout of heads (head_layout.h), and dots within that division.
#pragma once

#include "head_layout.h"
#include "vector.cuh"

namespace halfgnn::cuda {

// What one lane does.
struct HeadLane {
  int own;    // lane among those of its head
  int group;  // which of the edges that the warp works on at once
  int head;   // of the row; a padded one is past the last

  __device__ HeadLane(const HeadLayout& layout, int slice, int lane)
      : own(lane & ((1 << layout.log2_lanes) - 1)),
        group(lane >> (layout.log2_lanes + layout.log2_heads)),
        head((slice << layout.log2_heads) + ((lane >> layout.log2_lanes) & ((1 << layout.log2_heads) - 1))) {}

  __device__ bool exists(const HeadLayout& layout) const { return head < layout.heads; }
  // The head to read.
  __device__ int read(const HeadLayout& layout) const { return exists(layout) ? head : layout.heads - 1; }
};

// The vectors of a row that are a lane's in one tile. A vector past the head's end is the last one again: loads without
// conditions stay in flight together. Only the first `count` may enter a dot.
template <int kRepeat>
struct HeadVectors {
  uint32_t index[kRepeat];  // in the row
  int count;

  __device__ HeadVectors(const HeadLayout& layout, const HeadLane& work, int tile) : count(0) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      const int vector = ((tile * kRepeat + r) << layout.log2_lanes) + work.own;
      count += vector < layout.vectors;
      index[r] = static_cast<uint32_t>(work.read(layout)) * static_cast<uint32_t>(layout.vectors) +
                 static_cast<uint32_t>(vector < layout.vectors ? vector : layout.vectors - 1);
    }
  }
};

// sum + <x, y>
template <typename T, int kVector>
__device__ float add_dot(const float (&x)[kVector], const Fragment<T, kVector>& y, float sum) {
  float values[kVector];
  y.widen(values);
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum = fmaf(x[i], values[i], sum);
  return sum;
}

// Sums kCount values over the lanes of each head, in a fixed order: lanes exchange halves, so that each ends up with
// the totals of its own part, value (i << k) + own for k = min(log2_lanes, log2 kCount) in place i. If there are
// more lanes than values, lanes own + n kCount have the same. The whole warp takes part.
//
// kHasLanes: heads are known to have at least kCount lanes.
template <bool kHasLanes = false, int kCount>
__device__ void sum_over_head(float (&values)[kCount], int log2_lanes, int lane) {
  int step = 0;
#pragma unroll
  for (int count = kCount / 2; count > 0; count /= 2, ++step) {
    if (kHasLanes || step < log2_lanes) {
      const bool upper = (lane >> step & 1) != 0;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const float kept = upper ? values[2 * i + 1] : values[2 * i];
        const float sent = upper ? values[2 * i] : values[2 * i + 1];
        values[i] = kept + __shfl_xor_sync(kFullMask, sent, 1 << step);
      }
    }
  }
#pragma unroll
  for (; step < kLog2Warp; ++step) {
    if (step < log2_lanes) values[0] += __shfl_xor_sync(kFullMask, values[0], 1 << step);
  }
}

// Calls use(i, u, writes) for every value i that a lane owns after sum_over_head: it is value u of its group. One lane
// of those that have it writes it. Called by the whole warp alike.
//
// kOneApart: lanes that own one value have code of their own. It is shorter, and takes more registers where there are
// few.
template <int kCount, bool kOneApart = true, class Use>
__device__ void for_each_owned_value(const HeadLayout& layout, const HeadLane& work, const Use& use) {
  constexpr int kLog2Count = log2_ceil(kCount);
  if (kOneApart && layout.log2_lanes >= kLog2Count) {
    const int own = work.own & (kCount - 1);
    return use(0, own, work.exists(layout) && work.own == own);
  }
  const int log2_shared = kOneApart || layout.log2_lanes < kLog2Count ? layout.log2_lanes : kLog2Count;
  const int own = work.own & ((1 << log2_shared) - 1);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i << log2_shared < kCount) use(i, (i << log2_shared) + own, work.exists(layout) && work.own == own);
  }
}
// Calls use(i, place, writes): the value is that of the edge at `place` of those that the warp took, kCount a group,
// edge u of a group being u * groups + group.
template <int kCount, class Use>
__device__ void for_each_owned(const HeadLayout& layout, const HeadLane& work, const Use& use) {
  for_each_owned_value<kCount>(
      layout, work, [&](int i, int u, bool writes) { use(i, (u << layout.log2_groups()) + work.group, writes); });
}

// Rounds a result to T or, if is_float is set, leaves it in fp32.
template <typename T>
__device__ void store_result(void* data, bool is_float, uint64_t i, float value) {
  if (is_float) {
    __stcs(static_cast<float*>(data) + i, value);
  } else {
    Fragment<T, 1>::round(&value).store_streaming(static_cast<T*>(data) + i);
  }
}

}  // namespace halfgnn::cuda
