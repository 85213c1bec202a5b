// The largest and the smallest values of rows over runs of edges, and which edges they are of, held in registers tile
// by tile as the sums of row_tiles.h. The sums themselves are made beside them: they are finite only where all values
// are.
#pragma once

#include "row_tiles.h"

namespace halfgnn::HALFGNN_ISA {

// Which values are looked for.
enum class Extremes { kMax, kMin, kBoth };

// Blocks of a tile. Every vector of a block takes a register for each value that is looked for, another for its id, and
// one for the sum, or half of one if there are no ids and the sum is not wanted.
template <Extremes kWhich, bool kIds, bool kSum>
constexpr int kExtremeBlocks = kWhich == Extremes::kBoth ? (kIds ? 1 : kTileBlocks / 2)
                               : kIds || kSum            ? kTileBlocks / 2
                                                         : kTileBlocks;

// The best values of one row so far, as workspace, and the ids of their edges, in the same order.
struct Best {
  float* value;
  uint32_t* id;
};

template <int N, int L, bool kIds>
struct BestLanes {
  FloatsOf<L> value[N];
  WordsOf<L> id[N];

  HALFGNN_INLINE void load(const Best& best) {
    for (int i = 0; i < N; ++i) {
      value[i] = load_unaligned<FloatsOf<L>>(best.value + L * i);
      if (kIds) id[i] = load_unaligned<WordsOf<L>>(best.id + L * i);
    }
  }
  HALFGNN_INLINE void store(const Best& best) const {
    for (int i = 0; i < N; ++i) {
      memcpy(best.value + L * i, &value[i], sizeof(value[i]));
      if (kIds) memcpy(best.id + L * i, &id[i], sizeof(id[i]));
    }
  }
  HALFGNN_INLINE void set(int i, FloatsOf<L> x, WordsOf<L> edge) {
    value[i] = x;
    if (kIds) id[i] = edge;
  }
  template <class Mask>
  HALFGNN_INLINE void take(int i, Mask wins, FloatsOf<L> x, WordsOf<L> edge) {
    value[i] = choose_lanes(wins, x, value[i]);
    if (kIds) id[i] = choose_lanes(wins, edge, id[i]);
  }
  HALFGNN_INLINE void take_larger(int i, FloatsOf<L> x, WordsOf<L> edge) {
    if (kIds) id[i] = choose_lanes(greater(x, value[i]), edge, id[i]);
    value[i] = larger(x, value[i]);
  }
  HALFGNN_INLINE void take_smaller(int i, FloatsOf<L> x, WordsOf<L> edge) {
    if (kIds) id[i] = choose_lanes(greater(value[i], x), edge, id[i]);
    value[i] = smaller(x, value[i]);
  }
};

// The edges of a run: where their rows begin, which more rows follow that may be prefetched, and their ids.
template <class T>
struct EdgeRun {
  const T* const* rows;
  const uint32_t* ids;  // null: not wanted
  int64_t count;
  bool is_first;  // of its row: there is no best yet
};

// Looks at the edges of a run, and with kSum adds them up in `sum`. Of equal values the first wins. Returns false, and
// stores nothing, if the sum is not finite, unless kCareful: then the first NaN wins.
template <class B, Extremes kWhich, bool kIds, bool kSum, bool kCareful, int N>
HALFGNN_NOINLINE bool look_at_tile(const RowTile& tile, const EdgeRun<typename B::Element>& run, const Best& max,
                                   const Best& min, float* sum) {
  constexpr int L = B::L, kVectors = B::kWidth / L;
  constexpr bool kMax = kWhich != Extremes::kMin, kMin = kWhich != Extremes::kMax;
  constexpr int64_t kBytes = B::kWidth * static_cast<int64_t>(sizeof(typename B::Element));
  const typename B::Element* const* const rows = run.rows;
  const uint32_t* const ids = run.ids;
  const int64_t count = run.count;
  BestLanes<N * kVectors, L, kIds> greatest, least;
  // Without kSum a sum is there only to be finite or not: two vectors may share one, which leaves registers. (With ids,
  // GCC would then keep a sum in memory, and each edge would wait for it.)
  constexpr int kTotals = kSum || kIds ? N * kVectors : (N * kVectors + 1) / 2;
  FloatsOf<L> total[kTotals];
  for (int j = 0; j < kTotals; ++j) total[j] = FloatsOf<L>{};
  int64_t offset[N];
  HALFGNN_UNROLL_BLOCKS
  for (int b = 0; b < N; ++b) {
    offset[b] = tile.offset[b];
    const auto block = B::load(rows[0] + offset[b]);
    HALFGNN_UNROLL_BLOCKS
    for (int i = 0; i < kVectors; ++i) {
      const int j = b * kVectors + i;
      const WordsOf<L> edge = splat_bits<L>(kIds ? ids[0] : 0);
      if (run.is_first) total[j % kTotals] += block.v[i];
      if (kMax) greatest.set(j, block.v[i], edge);
      if (kMin) least.set(j, block.v[i], edge);
    }
  }
  if (!run.is_first) {
    if (kMax) greatest.load(max);
    if (kMin) least.load(min);
  }
  for (int64_t k = run.is_first ? 1 : 0; k < count; ++k) {
    const WordsOf<L> edge = splat_bits<L>(kIds ? ids[k] : 0);
    HALFGNN_UNROLL_BLOCKS
    for (int b = 0; b < N; ++b) {
      __builtin_prefetch(reinterpret_cast<const char*>(rows[k + kRowsAhead] + offset[b]) + kBytes - 1);
      const auto block = B::load(rows[k] + offset[b]);
      HALFGNN_UNROLL_BLOCKS
      for (int i = 0; i < kVectors; ++i) {
        const int j = b * kVectors + i;
        const FloatsOf<L> x = block.v[i];
        if constexpr (kCareful) {
          const auto is_nan = ~equal(x, x);
          if (kMax) {
            const FloatsOf<L> best = greatest.value[j];
            greatest.take(j, (greater(x, best) | is_nan) & equal(best, best), x, edge);
          }
          if (kMin) {
            const FloatsOf<L> best = least.value[j];
            least.take(j, (greater(best, x) | is_nan) & equal(best, best), x, edge);
          }
        } else {
          if (kMax) greatest.take_larger(j, x, edge);
          if (kMin) least.take_smaller(j, x, edge);
        }
        total[j % kTotals] += x;
      }
    }
  }
  if constexpr (!kCareful) {
    FloatsOf<L> zero = {};
    for (int j = 0; j < kTotals; ++j) zero += total[j] * splat<L>(0.f);
    if (sum_lanes(zero) != 0.f) return false;
  }
  if (kMax) greatest.store(max);
  if (kMin) least.store(min);
  if constexpr (kSum)
    for (int j = 0; j < kTotals; ++j) memcpy(sum + L * j, &total[j], sizeof(total[j]));
  return true;
}

template <class B, Extremes kWhich, bool kIds, bool kSum, int N>
HALFGNN_INLINE void look_at_blocks(const RowTile& tile, const EdgeRun<typename B::Element>& run, const Best& max,
                                   const Best& min, float* sum) {
  if (look_at_tile<B, kWhich, kIds, kSum, false, N>(tile, run, max, min, sum)) return;
  look_at_tile<B, kWhich, kIds, kSum, true, N>(tile, run, max, min, sum);
}

template <class B>
class ExtremeTiles {
 public:
  ExtremeTiles(const Blocks<B>& blocks, bool has_max, bool has_min)
      : blocks_(blocks),
        has_max_(has_max),
        has_min_(has_min),
        max_(has_max ? blocks.workspace() : 0),
        min_(has_min ? blocks.workspace() : 0),
        max_id_(has_max ? blocks.workspace() : 0),
        min_id_(has_min ? blocks.workspace() : 0) {}

  // A row without edges: values of 0, and no ids.
  void clear() {
    clear(has_max_, {max_, max_id_});
    clear(has_min_, {min_, min_id_});
  }
  // sum = the sum of the run's rows, unless it is null
  void add(const EdgeRun<typename B::Element>& run, float* sum) {
    if (has_max_ && has_min_) return look<Extremes::kBoth>(run, sum);
    if (has_max_) return look<Extremes::kMax>(run, sum);
    if (has_min_) return look<Extremes::kMin>(run, sum);
  }
  Best max() const { return {max_, max_id_}; }
  Best min() const { return {min_, min_id_}; }

 private:
  void clear(bool exists, const Best& best) {
    for (int64_t i = 0; exists && i < blocks_.workspace(); ++i) {
      best.value[i] = 0.f;
      best.id[i] = ~0u;
    }
  }
  template <Extremes kWhich>
  HALFGNN_INLINE void look(const EdgeRun<typename B::Element>& run, float* sum) {
    if (run.ids) return sum ? look<kWhich, true, true>(run, sum) : look<kWhich, true, false>(run, sum);
    return sum ? look<kWhich, false, true>(run, sum) : look<kWhich, false, false>(run, sum);
  }
  template <Extremes kWhich, bool kIds, bool kSum>
  HALFGNN_INLINE void look(const EdgeRun<typename B::Element>& run, float* sum) {
    each_tile<kExtremeBlocks<kWhich, kIds, kSum>>(blocks_, [&](auto n, const RowTile& tile, int64_t slot) {
      const Best max{max_ + (has_max_ ? slot : 0), max_id_ + (has_max_ ? slot : 0)};
      const Best min{min_ + (has_min_ ? slot : 0), min_id_ + (has_min_ ? slot : 0)};
      look_at_blocks<B, kWhich, kIds, kSum, decltype(n)::kBlocks>(tile, run, max, min, kSum ? sum + slot : nullptr);
    });
  }

  const Blocks<B> blocks_;
  const bool has_max_, has_min_;
  Buffer<float> max_, min_;
  Buffer<uint32_t> max_id_, min_id_;
};

}  // namespace halfgnn::HALFGNN_ISA
