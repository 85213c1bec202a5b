// Blocks for sums along a head, and the blocks that attention cuts heads into.
#pragma once

#include <type_traits>

#include "../blocks.h"

namespace halfgnn::HALFGNN_ISA {

// Values of Acc in flat arrays, a vector at a time.
template <class Acc>
using EntryBlock = std::conditional_t<sizeof(Acc) == 4, Block<float, kLanes>, SingleBlock<double, double>>;

// out[k * stride] = the sum of the lanes of sums[k]. The order of additions is that of sum_lanes whatever K, so that an
// edge's logit is the same in every pass.
template <class B, int K>
HALFGNN_INLINE void store_lane_sums(const typename B::V* sums, typename B::Acc* out, int64_t stride) {
  if constexpr (K == 4 && B::kWidth > 1) {
    store_four_sums(sums, out, stride);
  } else {
    for (int k = 0; k < K; ++k) out[k * stride] = B::sum(sums[k]);
  }
}

// Blocks that can be dotted: they know which elements of a last block repeat those of its neighbour.
template <class B>
struct HeadBlocks : Blocks<B> {
  using V = typename B::V;
  V mask;         // clears the elements of a last block that are repeated
  int64_t whole;  // blocks of a head that repeat nothing
  HeadBlocks(int64_t heads, int64_t dim)
      : Blocks<B>(heads, dim),
        mask(B::tail_mask(this->overlap())),
        whole(this->overlap() ? this->per_head - 1 : this->per_head) {}
  // sum += x y, for the elements that this block does not repeat.
  HALFGNN_INLINE V dot(int64_t block, V x, V y, V sum) const {
    return block < whole ? multiply_add(x, y, sum) : add(keep(multiply(x, y), mask), sum);
  }
};

// own = the elements of `row`, laid out like a row of sums.
template <class B>
HALFGNN_NOINLINE void load_own(const Blocks<B>& blocks, const typename B::Element* row, typename B::Acc* own) {
  blocks.each([&](int64_t, int64_t slot, int64_t offset) { B::store_acc(B::load(row + offset), own + slot); });
}

// f(a block of type B) for the blocks that heads of `dim` elements of `type` are cut into. kMakesDots: for kernels that
// add up the lanes of a block for every edge.
template <bool kMakesDots, class F>
inline void with_attention_block(DType type, int64_t dim, F f) {
  with_type(type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    if constexpr (sizeof(T) == 8) {
      return f(SingleBlock<double, double>{});
    } else {
      if constexpr (std::is_same<T, BFloat16>::value) {
        if (dim >= 2 * kLanes) return f(Block<T, 2 * kLanes>{});
      }
      if (dim >= kLanes) return f(Block<T, kLanes, kMakesDots ? kNarrowLanes<T> : kLanes>{});
      if constexpr (kLanes > 8) {
        if (dim >= 8) return f(Block<T, 8>{});
      }
      return f(SingleBlock<T, float>{});
    }
  });
}

}  // namespace halfgnn::HALFGNN_ISA
