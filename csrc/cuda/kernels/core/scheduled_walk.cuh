// The rows of a unit in the order of a schedule, which a caller keeps with the graph: rows that a warp walks together
// have like lengths, and units of slots have pieces of long rows.
//
// A schedule is int32 entries (halfgnn/row_schedule.py makes them). With S slots and N rows:
//   [0, S)           slots that pieces of long rows belong to, ascending; then -1
//   [S, 2 S)         the row of each of those
//   [2 S, 2 S + N)   the short rows, by falling degree among those of some thousand neighbouring rows; then -1
#pragma once

#include "row_units.cuh"
#include "uniform.cuh"

namespace halfgnn::cuda {

inline int64_t schedule_length(const Rows& rows) { return 2 * rows.num_slots + rows.num_rows; }

struct Schedule {
  const int32_t* entries;  // null: there is none

  __device__ bool exists() const { return entries != nullptr; }
  __device__ int32_t slot(int64_t piece) const { return __ldg(entries + piece); }
  __device__ uint32_t row_of_piece(const Rows& rows, int64_t piece) const {
    return static_cast<uint32_t>(__ldg(entries + rows.num_slots + piece));
  }
  __device__ uint32_t row(const Rows& rows, int64_t place) const {
    return static_cast<uint32_t>(__ldg(entries + 2 * rows.num_slots + place));
  }
};

// For TeamWalk, as UnitWalk. Without a schedule the rows of a unit are those of UnitWalk.
class ScheduledWalk {
 public:
  static constexpr bool kIsInOrder = false;

  explicit __device__ ScheduledWalk(const Schedule& schedule) : schedule_(schedule) {}

  // False if the unit has nothing to do.
  __device__ bool start(const RowUnits& units, uint32_t unit, int lane) {
    const Rows& rows = units.rows;
    is_slot_ = unit < rows.num_slots;
    return is_slot_ ? start_piece(rows, unit, lane) : start_rows(units, unit - rows.num_slots, lane);
  }

  __device__ bool is_slot() const { return is_slot_; }
  __device__ bool has_own_row(const Rows&, int) const { return line_ != kNone; }
  __device__ uint32_t degree_of_own_row() const { return num_edges_; }
  __device__ uint32_t first_row() const { return first_row_; }
  __device__ uint32_t slot() const { return line_; }
  // Row i of the unit, or the piece of a slot. i may differ from lane to lane.
  __device__ Piece piece(int i) const {
    const uint32_t begin = __shfl_sync(kFullMask, begin_, i), end = begin + __shfl_sync(kFullMask, num_edges_, i);
    const uint32_t line = __shfl_sync(kFullMask, line_, i);
    return {is_slot_ ? first_row_ : line, begin, end, line, !is_slot_};
  }

 private:
  static constexpr uint32_t kNone = 0xffffffffu;

  __device__ bool start_piece(const Rows& rows, uint32_t unit, int lane) {
    Piece piece;
    if (!schedule_.exists()) {
      if (!find_piece(rows, unit, lane, piece)) return false;
    } else {
      const int32_t slot = schedule_.slot(unit);
      if (slot < 0) return false;
      const int64_t row = schedule_.row_of_piece(rows, unit);
      piece = piece_of_slot(rows, slot, row, rows.indptr.offset(row), rows.indptr.offset(row + 1));
    }
    first_row_ = piece.row;
    line_ = piece.line;
    begin_ = piece.begin;
    num_edges_ = static_cast<uint32_t>(piece.num_edges());
    return true;
  }

  __device__ bool start_rows(const RowUnits& units, int64_t unit, int lane) {
    const Rows& rows = units.rows;
    const int64_t place = (unit << units.log2_rows) + lane;
    line_ = kNone;
    begin_ = num_edges_ = 0;
    if (lane < 1 << units.log2_rows && place < rows.num_rows) {
      line_ = !schedule_.exists() ? static_cast<uint32_t>(place) : schedule_.row(rows, place);
    }
    if (line_ != kNone) {
      begin_ = static_cast<uint32_t>(rows.indptr.offset(line_));
      num_edges_ = static_cast<uint32_t>(rows.indptr.offset(int64_t{line_} + 1)) - begin_;
    }
    first_row_ = uniform(line_);
    return first_row_ != kNone;
  }

  const Schedule schedule_;
  uint32_t first_row_;
  // Of the row whose number in the unit the lane has, or of the piece.
  uint32_t line_;
  uint32_t begin_;
  uint32_t num_edges_;
  bool is_slot_;
};

}  // namespace halfgnn::cuda
