// The rows of a unit in the order of a schedule, which a caller keeps with the graph: rows that a warp walks together
// have like lengths, and units of slots have pieces of long rows.
//
// A schedule is int32 entries (halfgnn/row_schedule.py makes them). With S slots and N rows:
//   [0, S)           slots that pieces of long rows belong to, ascending; then -1
//   [S, 2 S)         the row of each of those
//   [2 S, 2 S + N)   the short rows, by falling degree among those of some thousand neighbouring rows; then -1
#pragma once

#include "row_teams.cuh"

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

// The rows of a unit, or the piece of a slot, in the order of a schedule if there is one. The whole warp takes part.
struct ScheduledUnit {
  static constexpr uint32_t kNone = TeamRow::kNoLine;

  // Of the row whose number in the unit the lane has, or of the piece, whose row lane 1 has in place of its line.
  uint32_t line;
  uint32_t begin;
  uint32_t num_edges;

  __device__ bool exists() const { return line != kNone; }

  // False if the slot's row is short.
  __device__ bool start_piece(const Rows& rows, const Schedule& schedule, uint32_t unit, int lane) {
    Piece piece;
    if (!schedule.exists()) {
      if (!find_piece(rows, unit, lane, piece)) return false;
    } else {
      const int32_t slot = schedule.slot(unit);
      if (slot < 0) return false;
      const int64_t row = schedule.row_of_piece(rows, unit);
      piece = piece_of_slot(rows, slot, row, rows.indptr.offset(row), rows.indptr.offset(row + 1));
    }
    line = lane == 1 ? piece.row : piece.line;
    begin = piece.begin;
    num_edges = static_cast<uint32_t>(piece.num_edges());
    return true;
  }

  // Long rows are left out: they have no line and no edges. unit: among those of short rows.
  __device__ void start_rows(const RowUnits& units, const Schedule& schedule, uint32_t unit, int lane) {
    const Rows& rows = units.rows;
    const int64_t place = static_cast<int64_t>(uint64_t{unit} << units.log2_rows) + lane;
    line = kNone;
    begin = num_edges = 0;
    if (lane < 1 << units.log2_rows && place < rows.num_rows) {
      line = !schedule.exists() ? static_cast<uint32_t>(place) : schedule.row(rows, place);
    }
    if (line != kNone) {
      begin = static_cast<uint32_t>(rows.indptr.offset(line));
      num_edges = static_cast<uint32_t>(rows.indptr.offset(int64_t{line} + 1)) - begin;
    }
    if (rows.is_long(num_edges)) {
      line = kNone;
      num_edges = 0;
    }
  }
};

// The same, with the methods of UnitWalk that do not say in which order rows are.
class ScheduledRows {
 public:
  // False if the unit has nothing to do.
  __device__ bool start(const RowUnits& units, const Schedule& schedule, uint32_t unit, int lane) {
    is_slot_ = unit < units.rows.num_slots;
    if (is_slot_) return own_.start_piece(units.rows, schedule, unit, lane);
    own_.start_rows(units, schedule, unit - static_cast<uint32_t>(units.rows.num_slots), lane);
    return true;
  }
  __device__ bool is_slot() const { return is_slot_; }
  // Long rows are none of them.
  __device__ bool has_own_row(const Rows&, int) const { return own_.exists(); }
  __device__ uint32_t degree_of_own_row() const { return own_.num_edges; }
  __device__ Piece piece(int i) const {
    const uint32_t begin = __shfl_sync(kFullMask, own_.begin, i),
                   end = __shfl_sync(kFullMask, own_.begin + own_.num_edges, i);
    const uint32_t line = __shfl_sync(kFullMask, own_.line, i),
                   row = __shfl_sync(kFullMask, own_.line, i | (is_slot_ ? 1 : 0));
    return {row, begin, end, line, !is_slot_};
  }

 private:
  ScheduledUnit own_;
  bool is_slot_;
};

// Walks a unit as TeamWalk does, in the order of a schedule if there is one. First the rows of the unit are put in
// order: those that wait for the others, in lanes from 0 on, then those of teams. A schedule has them so. `work` has
//   load(position), start(team, row, index, pass) and finish(team, row, is_piece), as for TeamWalk
//   add_chunk(team, row, lengths, held, chunk)    team.size edges from `chunk` on, of which `held` was loaded
//   end_chunk(team, end)                          after them, if the longest row of the step has edges from `end` on
template <class Work>
class ScheduledWalk {
 public:
  __device__ ScheduledWalk(const TeamUnits& units, const Schedule& schedule, int lane, Work& work)
      : units_(units), schedule_(schedule), lane_(lane), work_(work) {}

  // Returns whether it was a piece of a long row.
  __device__ bool walk(uint32_t unit_of_lane) {
    const uint32_t unit = uniform(unit_of_lane);
    const Rows& rows = units_.row_units.rows;
    is_slot_ = static_cast<int>(uniform(unit < rows.num_slots ? 1 : 0));  // a shuffle is not computed again
    int waiting = 1, count = 1;
    if (is_slot_ != 0) {
      if (!own_.start_piece(rows, schedule_, unit, lane_)) return false;
    } else {
      own_.start_rows(units_.row_units, schedule_, unit - static_cast<uint32_t>(rows.num_slots), lane_);
      const bool waits = own_.num_edges > static_cast<uint32_t>(units_.layout.team_edges);
      const unsigned int of_teams = __ballot_sync(kFullMask, own_.exists() && !waits);
      const unsigned int of_warp = __ballot_sync(kFullMask, own_.exists() && waits), all = of_teams | of_warp;
      waiting = __popc(of_warp);
      count = __popc(all);
      if (count == 0) return false;
      if (((of_warp & (of_warp + 1)) | (all & (all + 1))) != 0) put_in_order(of_warp, of_teams, waiting);
    }
    // At most two turns: of teams, then of the warp.
    for (bool is_of_warp = count == waiting;; is_of_warp = true) {
      walk_rows(is_of_warp ? 0 : waiting, is_of_warp ? waiting : count,
                is_of_warp ? kLog2Warp : units_.layout.log2_team);
      if (is_of_warp || waiting == 0) break;
    }
    return is_slot_ != 0;
  }

  // Of the long row, and the piece's.
  __device__ uint32_t row() const { return __shfl_sync(kFullMask, own_.line, 1); }
  __device__ uint32_t slot() const { return uniform(own_.line); }

 private:
  // Bit k of `first` comes to lane k', if it is the k'-th, and those of `then` to the lanes behind.
  __device__ void put_in_order(unsigned int first, unsigned int then, int num_first) {
    const bool is_first = lane_ < num_first;
    const unsigned int bits = is_first ? first : then;
    const int wanted = is_first ? lane_ : lane_ - num_first;
    int source = 0;  // the first lane with `wanted` bits below it and its own bit
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) {
      const unsigned int below = (1u << (source + step)) - 1;
      if (__popc(bits & below) <= wanted) source += step;
    }
    const bool exists = wanted < __popc(bits);
    const uint32_t line = __shfl_sync(kFullMask, own_.line, source),
                   edges = __shfl_sync(kFullMask, own_.num_edges, source);
    own_.begin = __shfl_sync(kFullMask, own_.begin, source);
    own_.line = exists ? line : ScheduledUnit::kNone;
    own_.num_edges = exists ? edges : 0;
  }

  // Rows first ... last - 1 of the unit, each by a team. Lanes behind the last one have no row.
  __device__ void walk_rows(int first, int last, int log2_team) {
    const int end = as_computed(last);
    const Team team(units_.layout.log2_lanes, log2_team, lane_);
    TeamRow following = take(team, first);
    auto next = load(team, following, 0);
    for (bool is_last = false; !is_last;) {
      const TeamRow row = following;
      const Lengths lengths(row.num_edges);
      first += team.count;
      is_last = first >= end;
      work_.start(team, row, 0, 0);
      for (int chunk = 0;;) {
        const auto held = next;
        const int chunk_end = chunk + team.size;
        const bool has_more = chunk_end < lengths.longest;
        if (has_more) {
          next = load(team, row, chunk_end);
        } else if (!is_last) {
          following = take(team, first);
          next = load(team, following, 0);
        }
        if (chunk != 0) work_.end_chunk(team, chunk);
        if (chunk < lengths.longest) work_.add_chunk(team, row, lengths, held, chunk);
        if (!has_more) break;
        chunk = chunk_end;
      }
      work_.finish(team, row, is_slot_ != 0);
    }
  }

  __device__ TeamRow take(const Team& team, int first) const {
    const int own = first + team.number;
    const uint32_t begin = __shfl_sync(kFullMask, own_.begin, own), edges = __shfl_sync(kFullMask, own_.num_edges, own);
    return {__shfl_sync(kFullMask, own_.line, own), begin, static_cast<int>(edges)};
  }

  __device__ auto load(const Team& team, const TeamRow& row, int offset) const {
    return work_.load(row.position(units_.row_units.rows, team, offset));
  }

  const TeamUnits& units_;
  const Schedule schedule_;
  const int lane_;
  Work& work_;
  ScheduledUnit own_;
  int is_slot_;
};

// for_each_batch, with batches of one to three edges of each group in which no team ends, where rows are of one length.
template <int kUnroll, class Batch>
__device__ void for_each_even_batch(const Team& team, const Lengths& lengths, int chunk, const Batch& batch) {
  // Or they would be computed again for each batch.
  const int most = as_computed(min(lengths.longest - chunk, team.size));
  const int least = as_computed(min(lengths.shortest - chunk, team.size));
  const int groups = team.num_groups;
  const auto call = [&](auto edges, auto full, int& start) {
    batch(edges, full, start);
    start += decltype(edges)::value * groups;
  };
  using Three = std::integral_constant<int, 3>;
  using Two = std::integral_constant<int, 2>;
  using One = std::integral_constant<int, 1>;
  using All = std::integral_constant<int, kUnroll>;
  int start = 0;
  while (start + kUnroll * groups <= least) call(All{}, std::true_type{}, start);
  while (start < most) {
    const int left = most - start, full = least - start;
    if (left > 2 * groups) {
      if (left == 3 * groups && left == full) {
        call(Three{}, std::true_type{}, start);
      } else {
        call(All{}, std::false_type{}, start);
      }
    } else if (left > groups) {
      if (full == 2 * groups) {
        call(Two{}, std::true_type{}, start);
      } else {
        call(Two{}, std::false_type{}, start);
      }
    } else if (full == groups) {
      call(One{}, std::true_type{}, start);
    } else {
      call(One{}, std::false_type{}, start);
    }
  }
}

}  // namespace halfgnn::cuda
