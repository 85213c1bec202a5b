// How the rows of a CSC or CSR matrix are divided among warps. The division follows from sizes alone: it needs neither
// a schedule nor a host synchronisation.
//
// Row-wise kernels give a warp some whole short rows or a piece of a long one. A row is long if it has at least
// L = 2^log2_piece edges. Positions 0, L, 2 L, ... of the edge array are the slots: a long row holds at least one of
// them, and is cut at them. Its first piece also takes the edges before its first slot, so a piece has fewer than 2 L
// edges. Partial results go to the workspace, one line per slot. Those of a row are joined in order by the warp of its
// last piece (join.cuh: sums, maxima) or by a second kernel (long_rows.cuh). If the caller says that no row has 2^9
// edges (Topology::short_rows), no row is cut and nothing is joined.
//
// Edge-wise kernels give a warp 32 consecutive positions at a time, and find the row of each.
//
// Glossary. Every kernel of csrc/cuda/kernels uses these words.
//
//   position   index into the edge array: edges in the order of their rows
//   long row   a row that is cut, because it has at least 2^log2_piece edges; all others are short
//   slot       position that is a multiple of 2^log2_piece, and its number; has a place in the workspace
//   piece      what is worked on at once: a whole short row, or the part of a long row that belongs to one slot
//   line       where the result of a piece goes: the row's line of the results, or the slot's of the partial results
//   unit       what one warp (edge softmax: one block) is given: a slot, some consecutive short rows, or some positions
//   chunk      positions whose ids a warp or a team reads at once: mostly 32, one per lane
//   batch      edges of a chunk whose rows are in flight together
//   run        terms that a lane adds up before the sum joins its total (running_sum.cuh)
//   vector     consecutive elements that a lane loads or stores in one access of 2 to 16 bytes
//   group      lanes that together cover the columns of one edge; groups of a warp work on different edges
//   team       lanes or warps that share one row or piece: a group or several, a warp, or a block
//   step       rows that the teams of a warp work on at once, one per team (row_teams.cuh)
//   slice      columns or heads that one warp or block covers; other warps take the other slices
//   tile       part of a slice that fits in registers; its warp takes one tile after the other. In GAT each tile of
//              a wide head is a slice
#pragma once

#include "ids.cuh"

namespace halfgnn::cuda {

// Rows of so many edges are long. On large graphs pieces are longer, for few slots: the workspace is small then beside
// the features. On graphs of fewer edges than fill a GPU for a while pieces are shorter, for many: the warp of the
// longest one would end long after all others. Small graphs have no use for that, and launch less.
constexpr int kLog2Piece = 9, kMinLog2Piece = 7;
constexpr int64_t kMaxSlots = 1 << 17, kManySlots = 1 << 14;
constexpr int64_t kManyEdges = 1 << 17;
// If the caller says that all rows are short, no row is cut, however many edges it has: then there are no partial
// results to combine. Past so many edges that is not worth the risk, since a piece must have fewer than 2^31.
constexpr int kUncutLog2Piece = 31;
constexpr int64_t kMaxUncutEdges = int64_t{1} << 30;

struct Rows {
  Ids indptr;
  int64_t num_rows;
  int64_t num_edges;
  int64_t num_slots;  // 0: no row is long
  int32_t log2_piece;

  __host__ __device__ int64_t num_units() const { return num_slots + num_rows; }
  __device__ bool is_long(int64_t degree) const { return degree >> log2_piece != 0; }
  // The last row, among low ... high - 1, that starts at or before a position. A lane by itself.
  __device__ int64_t row_of(int64_t position, int64_t low, int64_t high) const {
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (indptr.offset(middle) <= position ? low : high) = middle;
    }
    return low;
  }
};

inline Rows rows_of(const Topology& topology) {
  Rows rows{{topology.indptr, topology.is_int64}, topology.num_rows, topology.num_edges, 0, kLog2Piece};
  if (topology.short_rows && topology.num_edges < kMaxUncutEdges) {
    rows.log2_piece = kUncutLog2Piece;
    return rows;
  }
  const auto slots = [&] { return topology.num_edges >> rows.log2_piece; };
  while (slots() > kMaxSlots) ++rows.log2_piece;
  while (topology.num_edges >= kManyEdges && slots() < kManySlots && rows.log2_piece > kMinLog2Piece) --rows.log2_piece;
  const int64_t piece = int64_t{1} << rows.log2_piece;
  if (topology.num_edges >= piece) rows.num_slots = ceil_div(topology.num_edges, piece);
  return rows;
}

// The row r with indptr[r] <= position < indptr[r + 1], among rows low ... high - 1. The whole warp takes part: 32
// probes a step, so 4 dependent loads for a million rows.
inline __device__ int64_t row_of_position(const Rows& rows, int64_t position, int lane, int64_t low, int64_t high) {
  while (high - low > 1) {
    const int64_t step = ceil_div(high - low, kWarpSize + 1);
    const int64_t probe = low + (lane + 1) * step;
    const bool at_or_before = probe < high && rows.indptr.offset(probe) <= position;
    const int passed = __popc(__ballot_sync(kFullMask, at_or_before));
    const int64_t next = low + (passed + 1) * step;
    low += passed * step;
    high = next < high ? next : high;
  }
  return low;
}

// A whole short row, or a part of a long one. Rows and positions are below 2^32; a piece has fewer than 2^31 edges.
struct Piece {
  uint32_t row;
  uint32_t begin, end;  // positions
  uint32_t line;        // of the results: the row; of the partial results: the slot
  bool is_whole_row;

  __device__ int num_edges() const { return static_cast<int>(end - begin); }
  __device__ bool is_empty() const { return begin == end; }
};

// The piece of a long row, at positions begin ... end - 1, that belongs to a slot.
inline __device__ Piece piece_of_slot(const Rows& rows, int64_t slot, int64_t row, int64_t begin, int64_t end) {
  const int64_t position = slot << rows.log2_piece, next = (slot + 1) << rows.log2_piece;
  const bool is_first = !rows.is_long(position - begin);
  return {static_cast<uint32_t>(row), static_cast<uint32_t>(is_first ? begin : position),
          static_cast<uint32_t>(end > next ? next : end), static_cast<uint32_t>(slot), false};
}

// The piece of unit 0 ... num_units() - 1: first the slots, then the rows, so that long pieces start early. Returns
// false if the unit has nothing to do: the slot's row is short, or the row is long. The whole warp takes part and gets
// the same answer.
inline __device__ bool find_piece(const Rows& rows, int64_t unit, int lane, Piece& piece) {
  const bool is_slot = unit < rows.num_slots;
  const int64_t position = unit << rows.log2_piece;
  const int64_t row = is_slot ? row_of_position(rows, position, lane, 0, rows.num_rows) : unit - rows.num_slots;
  const int64_t begin = rows.indptr.offset(row), end = rows.indptr.offset(row + 1);
  if (rows.is_long(end - begin) != is_slot) return false;
  if (is_slot) {
    piece = piece_of_slot(rows, unit, row, begin, end);
  } else {
    piece = {static_cast<uint32_t>(row), static_cast<uint32_t>(begin), static_cast<uint32_t>(end),
             static_cast<uint32_t>(row), true};
  }
  return true;
}

// The slots of one long row, or some of them: one in `stride`.
struct LongRow {
  uint32_t row;
  uint32_t degree;
  int32_t first_slot;
  int32_t num_slots;
  int32_t stride = 1;

  __device__ int64_t slot(int i) const { return first_slot + int64_t{i} * stride; }
};

inline __device__ LongRow long_row_of(const Rows& rows, int64_t row, int64_t begin, int64_t end) {
  const int64_t first_slot = (begin + (int64_t{1} << rows.log2_piece) - 1) >> rows.log2_piece;
  const int64_t last_slot = (end - 1) >> rows.log2_piece;
  return {static_cast<uint32_t>(row), static_cast<uint32_t>(end - begin), static_cast<int32_t>(first_slot),
          static_cast<int32_t>(last_slot - first_slot + 1)};
}

// Of slot first + lane, for lanes below `count`: the long row whose first slot that is; no slots if there is none. The
// whole warp takes part.
inline __device__ LongRow find_long_rows(const Rows& rows, int64_t first, int count, int lane) {
  if (first >= rows.num_slots) return {};
  const int64_t behind = first + count < rows.num_slots ? first + count : rows.num_slots;
  const int64_t slot = first + lane < behind ? first + lane : behind - 1, position = slot << rows.log2_piece;
  const int64_t low = row_of_position(rows, first << rows.log2_piece, lane, 0, rows.num_rows);
  const int64_t high = row_of_position(rows, (behind - 1) << rows.log2_piece, lane, low, rows.num_rows);
  const int64_t row = rows.row_of(position, low, high + 1);
  const int64_t begin = rows.indptr.offset(row), end = rows.indptr.offset(row + 1);
  const LongRow found = long_row_of(rows, row, begin, end);
  return lane < behind - first && rows.is_long(end - begin) && found.first_slot == slot ? found : LongRow{};
}

// The rows of the positions that a warp walks in order, 32 at a time.
class RowsOfEdges {
 public:
  // The whole warp takes part. `position` is the first that it walks, below num_edges.
  __device__ RowsOfEdges(const Rows& rows, int64_t position, int lane)
      : rows_(rows), lane_(lane), row_(row_of_position(rows, position, lane, 0, rows.num_rows)) {}

  // The row of position begin + lane; of num_edges - 1 for lanes past it. begin rises from call to call. The whole warp
  // takes part.
  __device__ int64_t next(int64_t begin) {
    const int64_t wanted = begin + lane_ < rows_.num_edges ? begin + lane_ : rows_.num_edges - 1;
    // Ends of the next 32 rows, one per lane, relative to begin.
    const int64_t end = row_ + lane_ < rows_.num_rows ? rows_.indptr.offset(row_ + lane_ + 1) - begin : kWarpSize;
    const int clamped = static_cast<int>(end < 0 ? 0 : end < kWarpSize ? end : kWarpSize);
    // How many of them lie at or before `wanted`: binary search across the lanes.
    const int relative = static_cast<int>(wanted - begin);
    int passed = 0;
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) {
      if (__shfl_sync(kFullMask, clamped, passed + step - 1) <= relative) passed += step;
    }
    int64_t row = row_ + passed;
    // 31 rows passed without reaching it, so many are empty: every lane searches for itself.
    if (passed == kWarpSize - 1) row = rows_.row_of(wanted, row, rows_.num_rows);
    row_ = shuffle(row, kWarpSize - 1);
    return row;
  }
  // The row of the last position of the last call.
  __device__ int64_t last() const { return row_; }

 private:
  static __device__ int64_t shuffle(int64_t value, int lane) {
    return static_cast<int64_t>(__shfl_sync(kFullMask, static_cast<unsigned long long>(value), lane));
  }

  const Rows& rows_;
  int lane_;
  int64_t row_;
};

}  // namespace halfgnn::cuda
