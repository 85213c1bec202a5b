// Sums of rows over a run of edges, held in registers: a row is cut into tiles of a few blocks, and each tile is added
// up over all edges of the run before the next one.
#pragma once

#include "blocks.h"
#include "buffer.h"
#include "edge_window.h"

namespace halfgnn::HALFGNN_ISA {

// Half of the registers hold sums. SSE2 has half as many bytes of them.
#if defined(__x86_64__) && !defined(HALFGNN_F16C)
constexpr int kTileBlocks = 2;
#else
constexpr int kTileBlocks = 4;
#endif

// The blocks of one tile: where they begin in a row, and the heads that they are part of.
struct RowTile {
  int64_t offset[kTileBlocks], head[kTileBlocks];
};

// How many of its blocks a tile has, as a constant.
template <int N>
struct TileOf {
  static constexpr int kBlocks = N;
};
// f(TileOf of `blocks` blocks, or of N if there are more)
template <int N, class F>
HALFGNN_INLINE void with_tile_of(int64_t blocks, F f) {
  if constexpr (N > 1) {
    if (blocks < N) return with_tile_of<N - 1>(blocks, f);
  }
  return f(TileOf<N>{});
}
// f(TileOf, tile, where it begins in workspace) for all tiles of a row of one head. They have kMost blocks at most.
template <int kMost, class B, class F>
HALFGNN_INLINE void each_tile(const Blocks<B>& blocks, F f) {
  RowTile tile;
  for (int64_t b = 0; b < blocks.per_head; b += kMost) {
    const int64_t left = blocks.per_head - b;
    for (int64_t i = 0; i < kMost; ++i) tile.offset[i] = blocks.offset(0, i < left ? b + i : b);
    with_tile_of<kMost>(left, [&](auto n) { f(n, tile, b * B::kWidth); });
  }
}

// Prefetches what the first N blocks of a tile read or, with kWrite, write of a row.
template <class B, int N, int kWrite = 0, class E>
HALFGNN_INLINE void prefetch_tile(const RowTile& tile, const E* row) {
  constexpr int64_t kBytes = N * B::kWidth * static_cast<int64_t>(sizeof(E));
  const char* p = reinterpret_cast<const char*>(row + tile.offset[0]);
  for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(p + i, kWrite);
  if (N < kTileBlocks) __builtin_prefetch(p + kBytes - 1, kWrite);  // no next tile fetches the line of the row's end
}

// What the blocks of a tile are multiplied by: nothing, one weight per edge, or one per edge and block.
enum class TileWeight { kNone, kOne, kPerBlock };

// Loops over blocks are to be unrolled before the compiler decides what is held in registers.
#define HALFGNN_UNROLL_BLOCKS _Pragma("GCC unroll 4")

// sum = the sum over `count` rows of the first N blocks of `tile`. The weights of a row begin `heads` after those of
// the row before.
template <class B, TileWeight kWeight, int N>
HALFGNN_NOINLINE void sum_tile(const RowTile& tile, int64_t heads, const typename B::Element* const* rows,
                               int64_t count, const float* weight, float* sum) {
  using V = typename B::V;
  int64_t offset[N], head[N];
  V total[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    offset[b] = tile.offset[b];
    head[b] = tile.head[b];
    total[b] = V{};
  }
  for (int64_t k = 0; k < count; ++k, weight += kWeight == TileWeight::kNone ? 0 : heads) {
    prefetch_tile<B, N>(tile, rows[k + kRowsAhead]);
    typename B::Weight w{};
    if (kWeight == TileWeight::kOne) w = B::weight(weight[head[0]]);
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      const V x = B::load_to_add(rows[k] + offset[b]);
      if (kWeight == TileWeight::kPerBlock) w = B::weight(weight[head[b]]);
      total[b] = kWeight == TileWeight::kNone ? add(total[b], x) : multiply_add(w, x, total[b]);
    }
  }
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) B::store_acc(total[b], sum + b * B::kWidth);
}

template <class B, TileWeight kWeight, int N = kTileBlocks>
HALFGNN_INLINE void sum_tile_of(int64_t blocks, const RowTile& tile, int64_t heads,
                                const typename B::Element* const* rows, int64_t count, const float* weight,
                                float* sum) {
  if constexpr (N > 1) {
    if (blocks < N) return sum_tile_of<B, kWeight, N - 1>(blocks, tile, heads, rows, count, weight, sum);
  }
  return sum_tile<B, kWeight, N>(tile, heads, rows, count, weight, sum);
}

template <class B>
class RowTiles {
 public:
  explicit RowTiles(const Blocks<B>& blocks)
      : heads_(blocks.heads),
        num_blocks_(blocks.heads * blocks.per_head),
        one_weight_(blocks.heads == 1 || blocks.per_head % kTileBlocks == 0),
        tiles_((num_blocks_ + kTileBlocks - 1) / kTileBlocks) {
    for (int64_t i = 0; i < num_blocks_; ++i) {
      RowTile& tile = tiles_[i / kTileBlocks];
      const int64_t head = tile.head[i % kTileBlocks] = i / blocks.per_head;
      tile.offset[i % kTileBlocks] = blocks.offset(head, i % blocks.per_head);
    }
  }

  // sum = the sum over `count` rows, as workspace. With weights, if they are given: one per head and row.
  HALFGNN_NOINLINE void sum(const typename B::Element* const* rows, int64_t count, const float* weight,
                            float* sum) const {
    const RowTile* tile = tiles_;
    for (int64_t left = num_blocks_; left > 0; left -= kTileBlocks, ++tile, sum += kTileBlocks * B::kWidth) {
      if (!weight) {
        sum_tile_of<B, TileWeight::kNone>(left, *tile, heads_, rows, count, weight, sum);
      } else if (one_weight_) {
        sum_tile_of<B, TileWeight::kOne>(left, *tile, heads_, rows, count, weight, sum);
      } else {
        sum_tile_of<B, TileWeight::kPerBlock>(left, *tile, heads_, rows, count, weight, sum);
      }
    }
  }

 private:
  int64_t heads_, num_blocks_;
  bool one_weight_;  // whether a tile is never of two heads
  Buffer<RowTile> tiles_;
};

}  // namespace halfgnn::HALFGNN_ISA
