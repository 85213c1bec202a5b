// How a warp walks rows whose ids it reads coalesced. Its unit is a piece of a long row, or some consecutive short rows
// whose ids then come in one stream.
#pragma once

#include "rows.cuh"

namespace halfgnn::cuda {

// The short rows of a unit: enough for kWantedEdges on average, unless that leaves a device idle. warps_per_row: warps
// that share a row.
inline int32_t log2_rows_of(const Topology& topology, int64_t warps_per_row) {
  constexpr int64_t kWantedEdges = 64, kWantedWarps = 1 << 13;
  constexpr int32_t kMaxLog2Rows = 4;
  int32_t log2_rows = 0;
  while (log2_rows < kMaxLog2Rows && topology.num_edges << log2_rows < kWantedEdges * topology.num_rows &&
         (topology.num_rows >> (log2_rows + 1)) * warps_per_row >= kWantedWarps) {
    ++log2_rows;
  }
  return log2_rows;
}

struct RowUnits {
  Rows rows;
  int32_t log2_rows;   // short rows of a unit
  uint32_t num_units;  // first one per slot, then the short rows
};

// Units of at least 2^min_log2_rows short rows.
inline RowUnits row_units_of(const Topology& topology, int64_t warps_per_row, int32_t min_log2_rows = 0) {
  const int32_t log2_rows = log2_rows_of(topology, warps_per_row);
  RowUnits units{rows_of(topology), log2_rows > min_log2_rows ? log2_rows : min_log2_rows, 0};
  // Fewer than 2^32: graphs of more than 2^26 rows have fewer than 64 edges per row.
  units.num_units =
      static_cast<uint32_t>(units.rows.num_slots + ceil_div(topology.num_rows, int64_t{1} << units.log2_rows));
  return units;
}

// The walk over the rows of one unit. The whole warp takes part.
class UnitWalk {
 public:
  static constexpr bool kIsInOrder = true;  // row i of a unit is its first row + i

  // False if the unit has nothing to do.
  __device__ bool start(const RowUnits& units, uint32_t unit, int lane) {
    const Rows& rows = units.rows;
    is_slot_ = unit < rows.num_slots;
    unit_ = unit;
    count_ = is_slot_ ? 1 : 1 << units.log2_rows;
    if (is_slot_) {
      Piece piece;
      if (!find_piece(rows, unit, lane, piece)) return false;
      first_row_ = piece.row;
      offset_ = lane == 0 ? piece.begin : piece.end;
    } else {
      const int64_t first = (int64_t{unit} - rows.num_slots) << units.log2_rows;
      first_row_ = static_cast<uint32_t>(first);
      offset_ = static_cast<uint32_t>(rows.indptr.offset(first + lane < rows.num_rows ? first + lane : rows.num_rows));
    }
    return true;
  }

  __device__ bool is_slot() const { return is_slot_; }
  // Row `lane` of the unit, if it has so many.
  __device__ bool has_own_row(const Rows& rows, int lane) const {
    return lane < count_ && int64_t{first_row_} + lane < rows.num_rows;
  }
  __device__ uint32_t degree_of_own_row() const { return __shfl_down_sync(kFullMask, offset_, 1) - offset_; }
  // Row i of the unit, or the piece of a slot. i may differ from lane to lane.
  __device__ Piece piece(int i) const {
    const uint32_t begin = __shfl_sync(kFullMask, offset_, i), end = __shfl_sync(kFullMask, offset_, i + 1);
    const uint32_t row = first_row_ + static_cast<uint32_t>(i);
    return {row, begin, end, is_slot_ ? unit_ : row, !is_slot_};
  }

  __device__ uint32_t first_row() const { return first_row_; }
  __device__ uint32_t slot() const { return unit_; }  // of a piece
  __device__ uint32_t first_position() const { return __shfl_sync(kFullMask, offset_, 0); }

  // Calls use(piece, is_skipped) for all rows of the unit, in order. A long row among short ones is skipped: the units
  // of its slots work on it.
  template <class Use>
  __device__ void for_each_row(const Rows& rows, const Use& use) const {
    uint32_t row = first_row_;
    for (int i = 0; i < count_ && row < rows.num_rows; ++i, ++row) {
      const Piece piece = this->piece(i);
      const bool is_skipped = !is_slot_ && rows.is_long(piece.num_edges());
      use(piece, is_skipped);
    }
  }

 private:
  uint32_t unit_;
  uint32_t first_row_;
  uint32_t offset_;  // where row first_row + lane starts
  int count_;        // of the unit's rows
  bool is_slot_;
};

// Calls use(piece) for those of a unit, in order. The whole warp takes part.
template <class Use>
__device__ void for_each_piece(const RowUnits& units, uint32_t unit, int lane, const Use& use) {
  UnitWalk walk;
  if (!walk.start(units, unit, lane)) return;
  walk.for_each_row(units.rows, [&](const Piece& piece, bool is_skipped) {
    if (!is_skipped) use(piece);
  });
}

// What the lanes of a warp hold about a chunk of 32 positions: read a chunk ahead, handed out by shuffle.
struct ChunkIds {
  uint32_t column;
  uint32_t edge;

  // From position `begin`; past the last position, that one again.
  __device__ void load(const Rows& rows, const Ids& columns, const Ids& edge_ids, bool with_edges, uint32_t begin,
                       int lane) {
    const auto num_edges = static_cast<uint32_t>(rows.num_edges);
    if (begin >= num_edges) return;
    const uint32_t position = begin + lane < num_edges ? begin + lane : num_edges - 1;
    column = columns.id(position);
    if (with_edges) edge = edge_ids.id(position);
  }
};

}  // namespace halfgnn::cuda
