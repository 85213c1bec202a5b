// Who shares a row in the kernels of edge softmax, and what they share of it.
//
// Terms. A vector is one access of kVector elements. An item is what a lane takes of a row at a time: a vector of one
// edge or, in the flat layout, a vector of the values of several edges that lie side by side (edge data in the order of
// the rows, a few columns); then the row's first and last item may hold values of its neighbours too. 2^log2_lanes
// lanes side by side take the vectors of one edge. A team shares a row: a few lanes, a warp, or the block.
#pragma once

#include "../core/rows.cuh"
#include "../core/types.cuh"
#include "edge_softmax_launch.h"

namespace halfgnn::cuda {

template <typename T, int kVectorElements, int kFlatColumns, bool kIsBackward>
struct SoftmaxConfig {
  using Element = T;
  static constexpr bool kBackward = kIsBackward;
  static constexpr int kArrays = kBackward ? 2 : 1;  // logits, or results and gradients
  static constexpr int kVector = kVectorElements;
  static constexpr bool kFlat = kFlatColumns > 0;
  static constexpr int kColumns = kFlat ? kFlatColumns : kVector;  // that a lane has sums for
  static constexpr int kItems = softmax_items(kVector * static_cast<int>(sizeof(T)), kBackward, kFlat);
  static constexpr int kThreads = kSoftmaxWarps * kWarpSize;
  static constexpr int kHeldBytes = kArrays * kItems * kVector * static_cast<int>(sizeof(T));  // of a lane's items
  // Registers per lane: at most 72 for 64 bytes, 96 for 128, 128 for 256. So 28, 20 and 16 warps are on a
  // multiprocessor, with 2, 4 and 8 KiB in flight each. Eight items of 64 bytes and their addresses take 80 on sm_100.
  static constexpr int kSmallBlocks = kCompiledArch >= 1000 && kItems == 8 ? 6 : 7;
  static constexpr int kMinBlocks = kHeldBytes > 128 ? 4 : kHeldBytes > 64 ? 5 : kSmallBlocks;
  static_assert(kVector % kColumns == 0, "a flat vector holds whole edges");
};

struct Maximum {
  static __device__ float apply(float a, float b) { return fmaxf(a, b); }
};
struct Sum {
  static __device__ float apply(float a, float b) { return a + b; }
};

// Who shares a row: 2^log2_size lanes. Seen from one of its lanes.
struct SoftmaxTeam {
  int log2_size;
  int first_item;  // of this lane
  int stride;      // items of all lanes

  static __device__ SoftmaxTeam make(int log2_size, int log2_lanes, int thread) {
    const int size = 1 << log2_size;
    return {log2_size, (thread & (size - 1)) >> log2_lanes, size >> log2_lanes};
  }
  static __device__ SoftmaxTeam block(int log2_lanes, int thread) { return make(kLog2Block, log2_lanes, thread); }
  __device__ bool is_block() const { return log2_size == kLog2Block; }

  static constexpr int kLog2Block = log2_ceil(kSoftmaxWarps * kWarpSize);
};

// The items of a row or of a piece: fewer than 2^31, since long rows are cut. In the flat layout the first `skip`
// elements of the first one, and those from `keep` on of the last, are not the row's.
struct SoftmaxItems {
  uint32_t first = 0;
  int count = 0;
  int skip = 0;
  int keep = 0;
};
template <class Config>
__device__ SoftmaxItems items_of(int64_t begin, int64_t end) {
  if (begin == end) return {};
  if constexpr (Config::kFlat) {
    const int64_t low = begin * Config::kColumns, high = end * Config::kColumns;
    const int64_t first = low / Config::kVector, last = (high - 1) / Config::kVector;
    return {static_cast<uint32_t>(first), static_cast<int>(last - first + 1),
            static_cast<int>(low - first * Config::kVector), static_cast<int>(high - last * Config::kVector)};
  } else {
    return {static_cast<uint32_t>(begin), static_cast<int>(end - begin), 0, 0};
  }
}

}  // namespace halfgnn::cuda
