// How a warp walks a unit whose rows are mostly short: several of them at once.
//
// The lanes of a warp are groups, each of which covers the columns of one edge. A team is one group or several. A unit
// (row_units.cuh) is walked in steps. In a step each team takes one row, and its groups share the edges of the row. A
// row of many more edges than the others waits until the other rows are done. Then it gets a step of its own, in which
// the warp is one team. A piece of a long row gets such a step too.
//
// The lanes of a team read ids of its edges, coalesced and one per lane, a chunk or a step ahead of their use, and hand
// them out by shuffle. Branches depend on values that are the same for all lanes of a warp, and that the compiler knows
// to be the same.
#pragma once

#include <type_traits>

#include "row_units.cuh"
#include "team_layout.h"
#include "uniform.cuh"

namespace halfgnn::cuda {

struct TeamUnits {
  RowUnits row_units;
  TeamLayout layout;
};

// Units of at least one row per team.
inline TeamUnits team_units_of(const Topology& topology, const TeamLayout& layout, int64_t warps_per_row) {
  return {row_units_of(topology, warps_per_row, kLog2Warp - layout.log2_team), layout};
}

// A lane's place in its team.
struct Team {
  int number;  // of the team in its warp
  int count;   // of teams
  int size;
  int lane;
  int group;
  int num_groups;
  int source;  // the lane of the warp that holds the ids of this group's first edge

  __device__ Team(int log2_lanes, int log2_team, int warp_lane)
      : number(as_computed(warp_lane >> log2_team)),
        count(as_computed(kWarpSize >> log2_team)),
        size(as_computed(1 << log2_team)),
        lane(as_computed(warp_lane & (size - 1))),
        group(as_computed(lane >> log2_lanes)),
        num_groups(as_computed(size >> log2_lanes)),
        source(as_computed(warp_lane - lane + group)) {}
};

// The edges of the teams of a warp.
struct Lengths {
  int longest, shortest;
  __device__ explicit Lengths(int num_edges) : longest(warp_max(num_edges)), shortest(-warp_max(-num_edges)) {}
};

// The row, or the piece of a long row, that a team works on.
struct TeamRow {
  static constexpr uint32_t kNoLine = 0xffffffffu;

  uint32_t line;   // of its result
  uint32_t begin;  // position
  int num_edges;

  // Otherwise it has no edges and no result.
  __device__ bool exists() const { return line != kNoLine; }
  // The position whose ids a lane of the team reads, `offset` edges into the row. Past the last edge it is the last
  // one, or without edges any other: lanes hold ids that can be followed, unless the graph has no edges.
  __device__ uint32_t position(const Rows& rows, const Team& team, int offset) const {
    const uint32_t wanted = begin + static_cast<uint32_t>(min(offset + team.lane, num_edges - 1));
    return min(wanted, static_cast<uint32_t>(rows.num_edges) - 1);
  }
};

// Walks a unit. The whole warp takes part. `work` has
//   load(position)                          what a lane holds of an edge, for its team
//   passes()                                how often it walks each row
//   start(team, row, index, pass)           before the edges of a row
//   add(team, row, lengths, held, chunk)    team.size edges from `chunk` on, of which `held` was loaded
//   finish(team, row, is_piece)             after them. is_piece: of a long row, the same for the warp
// The rows of a unit are those of `Walk`: UnitWalk, or a class with the same methods.
template <class Work, class Walk = UnitWalk>
class TeamWalk {
 public:
  __device__ TeamWalk(const TeamUnits& units, int lane, Work& work, const Walk& walk = {})
      : units_(units), lane_(lane), work_(work), walk_(walk) {}

  // Returns whether it was a piece of a long row.
  __device__ bool walk(uint32_t unit_of_lane) {
    const uint32_t unit = uniform(unit_of_lane);
    const Rows& rows = units_.row_units.rows;
    if (!walk_.start(units_.row_units, unit, lane_)) return false;
    first_line_ = walk_.is_slot() ? unit : walk_.first_row();
    unsigned int of_teams = 0, waiting = 1;
    if (!walk_.is_slot()) {
      const uint32_t degree = walk_.degree_of_own_row();
      const bool is_short = walk_.has_own_row(rows, lane_) && !rows.is_long(degree);
      const bool waits = degree > static_cast<uint32_t>(units_.layout.team_edges);
      of_teams = __ballot_sync(kFullMask, is_short && !waits);
      waiting = __ballot_sync(kFullMask, is_short && waits);
    }
    // At most two turns.
    for (int log2_team = units_.layout.log2_team; (of_teams | waiting) != 0; log2_team = kLog2Warp) {
      unsigned int some = of_teams;
      of_teams = 0;
      if (some == 0) {
        some = waiting;
        waiting = 0;
        log2_team = kLog2Warp;
      }
      walk_rows(some, log2_team);
    }
    return walk_.is_slot();
  }
  // Of the long row, and the piece's.
  __device__ uint32_t row() const { return walk_.first_row(); }
  __device__ uint32_t slot() const { return walk_.slot(); }

 private:
  // The rows of the unit that are bits of `rows`, each by a team.
  __device__ void walk_rows(unsigned int rows, int log2_team) {
    const Team team(units_.layout.log2_lanes, log2_team, lane_);
    TeamRow following = take(team, rows);
    auto next = load(team, following, 0);
    for (bool is_last = false; !is_last;) {
      const TeamRow row = following;
      const Lengths lengths(row.num_edges);
      is_last = rows == 0;
      for (int pass = 0; pass < work_.passes(); ++pass) {
        work_.start(team, row, walk_.is_slot() || !row.exists() ? walk_.first_row() : row.line, pass);
        for (int chunk = 0, end;; chunk = end) {
          const auto held = next;
          end = chunk + team.size;
          if (end < lengths.longest) {
            next = load(team, row, end);
          } else if (pass + 1 < work_.passes()) {
            next = load(team, row, 0);
          } else if (!is_last) {
            following = take(team, rows);
            next = load(team, following, 0);
          }
          if (chunk >= lengths.longest) break;  // no edges
          work_.add(team, row, lengths, held, chunk);
          if (end >= lengths.longest) break;
        }
        work_.finish(team, row, walk_.is_slot());
      }
    }
  }

  // The team's row of those that are left.
  __device__ TeamRow take(const Team& team, unsigned int& rows) const {
    const int first = __ffs(static_cast<int>(rows)) - 1, own = first + team.number;
    const bool exists = (rows >> own & 1) != 0;
    rows &= kFullMask << (first + team.count);
    const Piece piece = walk_.piece(own);
    const uint32_t line = Walk::kIsInOrder ? first_line_ + static_cast<uint32_t>(own) : piece.line;
    return {exists ? line : TeamRow::kNoLine, piece.begin, exists ? piece.num_edges() : 0};
  }

  __device__ auto load(const Team& team, const TeamRow& row, int offset) const {
    return work_.load(row.position(units_.row_units.rows, team, offset));
  }

  const TeamUnits& units_;
  const int lane_;
  Work& work_;
  Walk walk_;
  uint32_t first_line_;
};

// Splits the edges [0, ...) of a chunk, team.size at most of each team, into batches of up to kUnroll edges per group:
// batch(number of edges as a constant, whether no team ends in it as a constant, first edge).
template <int kUnroll, class Batch>
__device__ void for_each_batch(const Team& team, const Lengths& lengths, int chunk, const Batch& batch) {
  const int most = min(lengths.longest - chunk, team.size);
  const int least = min(lengths.shortest - chunk, team.size);
  int start = 0;
  for (; start + kUnroll * team.num_groups <= least; start += kUnroll * team.num_groups) {
    batch(std::integral_constant<int, kUnroll>{}, std::true_type{}, start);
  }
  while (start < most) {
    const int groups_left = most - start;
    if (kUnroll > 2 && groups_left > 2 * team.num_groups) {
      batch(std::integral_constant<int, kUnroll>{}, std::false_type{}, start);
      start += kUnroll * team.num_groups;
    } else if (groups_left > team.num_groups) {
      batch(std::integral_constant<int, 2>{}, std::false_type{}, start);
      start += 2 * team.num_groups;
    } else {
      batch(std::integral_constant<int, 1>{}, std::false_type{}, start);
      start += team.num_groups;
    }
  }
}

}  // namespace halfgnn::cuda
