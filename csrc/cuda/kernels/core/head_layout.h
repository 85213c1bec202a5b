// How the lanes of a warp are divided among edges, heads and the elements of a head. Without CUDA's headers.
//
// A head of `dim` elements is cut into vectors of kVector elements, the largest access that alignment allows. 2^k lanes
// share a head, each kRepeat vectors of it; a warp covers 2^h heads (padded ones repeat the last head and store
// nothing) and, with the lanes that are left, 2^(5 - h - k) edges at once. Heads that do not fit are slices, which
// other warps take; a head of more vectors than a warp covers is walked in tiles.
#pragma once

#include "warp.h"

namespace halfgnn::cuda {

struct HeadLayout {
  int32_t heads;
  int32_t vectors;     // of a head
  int32_t log2_lanes;  // that share a head
  int32_t log2_heads;  // that a warp covers
  int32_t slices;
  int32_t tiles;  // of a head
  bool by_slice;  // all work on one slice before the next

  HALFGNN_HOST_DEVICE int log2_groups() const { return kLog2Warp - log2_lanes - log2_heads; }
};

}  // namespace halfgnn::cuda
