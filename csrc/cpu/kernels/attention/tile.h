// Tiles: the edges that an attention kernel works on at once.
//
// A tile is whole rows, small enough for the first-level cache. A row that is longer is cut into tiles of its own. An
// entry is an (edge, head) of the tile: what belongs to entries lies in flat arrays (entries.h), so that logits,
// exponentials and dropout take full vectors whatever the degrees. Then the rows of features are added up, several
// edges at once. What a row's result is made of, and in which order, does not depend on the rows beside it.
#pragma once

#include "../../../core/types.h"
#include "../buffer.h"
#include "../rows.h"

namespace halfgnn::HALFGNN_ISA {

// The most entries of a tile: a flat array of them is 2 KB.
constexpr int64_t kTileEntries = 512;

// How many edges ahead parts of rows are prefetched. A part is added up in fewer instructions than the whole rows that
// kPrefetchEdges is for.
constexpr int64_t kTileAhead = 16;
// How many edges ahead the columns of a tile are known, and what is read or written once per edge, in a short loop, is
// prefetched: most of it belongs to the next tile.
constexpr int64_t kNextTile = 32;

// The most edges of a tile whose gathered rows, `row_bytes` per edge, should stay in the first-level cache until they
// are read again.
HALFGNN_INLINE int64_t tile_edges(int64_t heads, int64_t row_bytes) {
  constexpr int64_t kTileBytes = 1 << 14, kFewest = 16;
  const int64_t by_entries = kTileEntries / heads;
  const int64_t by_bytes = row_bytes > 0 ? kTileBytes / row_bytes : by_entries;
  const int64_t least = by_entries < by_bytes ? by_entries : by_bytes;
  return least < kFewest ? kFewest : least;
}

// The rows [row_begin, row_end) tile by tile. Edges are numbered within the tile.
class EdgeTile {
 public:
  EdgeTile(const Topology& topology, int64_t heads, int64_t max_edges, int64_t row_begin, int64_t row_end)
      : topology_(topology),
        max_edges_(max_edges),
        row_end_(row_end),
        row_(row_begin),
        position_(row_begin < row_end ? indptr(row_begin) : 0),
        starts_(max_edges + 2),
        cols_(max_edges + kNextTile),
        edges_(max_edges + kNextTile),
        gathered_(cols_),
        heads(heads) {}

  // Moves on; false at the end.
  HALFGNN_NOINLINE bool next() {
    if (row_ == row_end_) return false;
    first_row = row_;
    begin = position_;
    starts = begin == indptr(row_);
    const int64_t row_stop = indptr(row_ + 1);
    finishes = row_stop - begin <= max_edges_;
    end = finishes ? row_stop : begin + max_edges_;
    last_row = row_ + 1;
    starts_[0] = 0;
    starts_[1] = end - begin;
    if (starts && finishes) add_whole_rows();
    position_ = end;
    if (finishes) row_ = last_row;
    load_indices();
    return true;
  }

  HALFGNN_INLINE int64_t num_edges() const { return end - begin; }
  HALFGNN_INLINE int64_t entries() const { return (end - begin) * heads; }
  // Entries rounded up to whole vectors: flat arrays may be computed to here.
  HALFGNN_INLINE int64_t padded() const { return (entries() + kLanes - 1) / kLanes * kLanes; }
  int64_t capacity() const { return max_edges_ * heads + kLanes; }
  int64_t max_rows() const { return max_edges_ + 1; }
  HALFGNN_INLINE int64_t row_first(int64_t row) const { return starts_[row - first_row]; }
  HALFGNN_INLINE int64_t row_last(int64_t row) const { return starts_[row - first_row + 1]; }
  // Of an edge of the tile, or of the kNextTile edges after it: beyond the last edge of all, of that one again.
  HALFGNN_INLINE int64_t column(int64_t edge) const { return gathered_[edge]; }
  HALFGNN_INLINE int64_t edge_id(int64_t edge) const { return edges_[edge]; }
  // While true is the last value given, column() is edge_id(): rows of edge data are gathered as those of columns are.
  void gather_edges(bool by_edge) { gathered_ = by_edge ? edges_ : cols_; }
  // Whether column() and edge_id() of an edge are known; they are for some edges after the tile.
  HALFGNN_INLINE bool has(int64_t edge) const { return edge < known_; }
  // Whether a row that ends in this tile has no edges at all.
  HALFGNN_INLINE bool is_empty(int64_t row) const { return starts && row_first(row) == row_last(row); }
  // f(row, first, last) for the rows of this tile and their edges.
  template <class F>
  HALFGNN_INLINE void each_row(F f) const {
    for (int64_t row = first_row; row < last_row; ++row) f(row, row_first(row), row_last(row));
  }

 private:
  HALFGNN_INLINE int64_t indptr(int64_t row) const {
    return topology_.is_int64 ? static_cast<const int64_t*>(topology_.indptr)[row]
                              : static_cast<const int32_t*>(topology_.indptr)[row];
  }
  // The rows after the first one, as many as there is room for.
  HALFGNN_INLINE void add_whole_rows() {
    while (last_row < row_end_ && last_row - first_row <= max_edges_) {
      const int64_t next_end = indptr(last_row + 1);
      if (next_end - begin > max_edges_) break;
      end = next_end;
      ++last_row;
      starts_[last_row - first_row] = end - begin;
    }
  }
  HALFGNN_INLINE void load_indices() {
    const int64_t left = topology_.num_edges - begin, wanted = end - begin + kNextTile;
    known_ = left < wanted ? left : wanted;
    copy(topology_.indices, begin, known_, cols_);
    for (int64_t i = known_; i < wanted; ++i) cols_[i] = i > 0 ? cols_[i - 1] : 0;
    if (topology_.edge_ids) {
      copy(topology_.edge_ids, begin, known_, edges_);
    } else {
      for (int64_t i = 0, n = known_, first = begin, *out = edges_; i < n; ++i) out[i] = first + i;
    }
    for (int64_t i = known_; i < wanted; ++i) edges_[i] = i > 0 ? edges_[i - 1] : 0;
  }
  HALFGNN_INLINE void copy(const void* indices, int64_t first, int64_t n, int64_t* out) const {
    if (topology_.is_int64) {
      memcpy(out, static_cast<const int64_t*>(indices) + first, static_cast<size_t>(n) * sizeof(int64_t));
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<const int32_t*>(indices)[first + i];
    }
  }
  Topology topology_;
  int64_t max_edges_, row_end_, row_, position_, known_ = 0;
  Buffer<int64_t> starts_, cols_, edges_;
  const int64_t* gathered_;  // cols_ or edges_

 public:
  int64_t heads;
  int64_t first_row = 0, last_row = 0;    // rows of this tile
  int64_t begin = 0, end = 0;             // positions of its edges
  bool starts = false, finishes = false;  // whether its rows begin and end in it
};

template <int K>
struct Count {
  static constexpr int value = K;
};
// f(first, Count<K>) for the edges [first, last) in batches of kMost edges, and of fewer at the end.
template <int kMost, class F>
HALFGNN_INLINE void in_batches(int64_t first, int64_t last, F f) {
  for (; first + kMost <= last; first += kMost) f(first, Count<kMost>{});
  if constexpr (kMost > 2) {
    if (first + 2 <= last) {
      f(first, Count<2>{});
      first += 2;
    }
  }
  if constexpr (kMost > 1) {
    if (first < last) f(first, Count<1>{});
  }
}

}  // namespace halfgnn::HALFGNN_ISA
