// How pieces of long rows are joined by the kernel that walked them: by the last of them to arrive, as in Merrill and
// Garland's merge-based SpMV (SC 2016) or CUDA's threadFenceReduction, but always in the order of the slots, so that
// results do not depend on who comes last.
//
// A row of at most kJoinedSlots pieces is joined by the warp of its last one. Of more pieces, each kJoinedSlots are
// joined in the place of the first of them, and then these places in the same way. So a node of a million edges, with
// 7,813 pieces, is three levels of 64 places at most: a warp reads the 64 rows of 512 bytes of 128 columns in 16
// batches, in about 8 microseconds if each takes the latency of the L2 cache, and at most 24 follow the last piece,
// where one warp would take 1 ms for all pieces (arithmetic, not measured).
#pragma once

#include "rows.cuh"
#include "uniform.cuh"

namespace halfgnn::cuda {

constexpr int kJoinedSlots = 64;

// Whether this is the last of `expected` warps that arrive at a counter, which was 0 before. What the others wrote
// before they arrived is visible then. The whole warp takes part.
inline __device__ bool is_last_to_arrive(uint32_t* counter, int32_t expected, int lane) {
  uint32_t before = 0;
  __syncwarp();
  if (lane == 0) {
    __threadfence();
    before = atomicAdd(counter, 1u);
    __threadfence();
  }
  __syncwarp();
  return uniform(before) + 1 == static_cast<uint32_t>(expected);
}

// For the warp that has written what the piece at `slot` of a row left: calls join(places, whether they are all of the
// row) for those that it joins. counters: one for each slot, 0 at first. The whole warp takes part.
template <class Join>
__device__ void join_pieces(const LongRow& row, uint32_t* counters, uint32_t slot, int lane, const Join& join) {
  int32_t place = static_cast<int32_t>(slot) - row.first_slot, count = row.num_slots, stride = 1;
  // Several places of a level span more slots than there are levels below it.
  uint32_t* counter = counters + row.first_slot;
  for (; count > kJoinedSlots; ++counter) {
    place &= -kJoinedSlots;
    const int32_t left = count - place, joined = left < kJoinedSlots ? left : kJoinedSlots, first = place * stride;
    if (joined > 1) {
      if (!is_last_to_arrive(counter + first, joined, lane)) return;
      join(LongRow{row.row, row.degree, row.first_slot + first, joined, stride}, false);
    }
    place /= kJoinedSlots;
    count = (count + kJoinedSlots - 1) / kJoinedSlots;
    stride *= kJoinedSlots;
  }
  if (count > 1 && !is_last_to_arrive(counter, count, lane)) return;
  __syncwarp();  // a piece by itself: other lanes wrote it
  join(LongRow{row.row, row.degree, row.first_slot, count, stride}, true);
}

}  // namespace halfgnn::cuda
