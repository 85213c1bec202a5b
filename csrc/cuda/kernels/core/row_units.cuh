// How a warp walks rows whose ids it reads coalesced: one piece of a long row, or some consecutive short rows, whose
// ids then come in one stream.
#pragma once

#include "rows.cuh"

namespace halfgnn::cuda {

struct RowUnits {
  Rows rows;
  int32_t log2_rows;   // short rows that a unit has
  uint32_t num_units;  // first one a slot, then the short rows
};

// Enough rows for kWantedEdges on average, unless that leaves a device idle. `warps_a_row`: that share a row.
inline RowUnits row_units_of(const Topology& topology, int64_t warps_a_row) {
  constexpr int64_t kWantedEdges = 64, kWantedWarps = 1 << 13;
  constexpr int kMaxLog2Rows = 4;
  RowUnits units{rows_of(topology), 0, 0};
  while (units.log2_rows < kMaxLog2Rows && topology.num_edges << units.log2_rows < kWantedEdges * topology.num_rows &&
         (topology.num_rows >> (units.log2_rows + 1)) * warps_a_row >= kWantedWarps) {
    ++units.log2_rows;
  }
  // Fewer than 2^32: graphs of more than 2^26 rows have fewer than 64 edges a row.
  units.num_units =
      static_cast<uint32_t>(units.rows.num_slots + ceil_div(topology.num_rows, int64_t{1} << units.log2_rows));
  return units;
}

// A whole row, or a piece of one. Positions are below 2^32.
struct RowPiece {
  uint32_t row;
  uint32_t begin, end;
  int32_t slot;  // of a piece; -1 for a whole row

  __device__ bool is_whole_row() const { return slot < 0; }
  __device__ bool is_empty() const { return begin == end; }
};

// Calls use(piece) for those of a unit, in order. The whole warp takes part.
template <class Use>
__device__ void for_each_piece(const RowUnits& units, uint32_t unit, int lane, const Use& use) {
  const Rows& rows = units.rows;
  const bool is_slot = unit < rows.num_slots;
  RowPiece next{0, 0, 0, is_slot ? static_cast<int32_t>(unit) : -1};
  uint32_t offset;  // where row + lane starts
  if (is_slot) {
    Piece piece;
    if (!find_piece(rows, unit, lane, piece)) return;
    next.row = static_cast<uint32_t>(piece.row);
    offset = static_cast<uint32_t>(lane == 0 ? piece.begin : piece.end);
  } else {
    const int64_t first = (int64_t{unit} - rows.num_slots) << units.log2_rows;
    next.row = static_cast<uint32_t>(first);
    offset = static_cast<uint32_t>(rows.indptr.offset(first + lane < rows.num_rows ? first + lane : rows.num_rows));
  }
  const int count = is_slot ? 1 : 1 << units.log2_rows;
  for (int i = 0; i < count && next.row < rows.num_rows; ++i, ++next.row) {
    next.begin = __shfl_sync(kFullMask, offset, i);
    next.end = __shfl_sync(kFullMask, offset, i + 1);
    if (is_slot || !rows.is_long(next.end - next.begin)) use(next);
  }
}

// What the lanes of a warp hold about 32 consecutive positions: read a chunk ahead, handed out by shuffle.
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
