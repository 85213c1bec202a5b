// How many lanes share a row of few edges (core/team_layout.h), and how warps then walk rows.
#pragma once

#include <algorithm>
#include <limits>

#include "../core/team_layout.h"
#include "model.h"
#include "work.h"

namespace halfgnn::cuda {

inline int64_t average_degree(int64_t num_edges, int64_t num_rows) {
  return num_rows > 0 ? ceil_div(num_edges, num_rows) : 0;
}

// Edges that a team has in flight: `unroll` per group of 2^log2_lanes lanes, but no more than it has ids for.
inline int64_t team_batch(int log2_lanes, int log2_team, int unroll) {
  return int64_t{std::min(1 << log2_lanes, unroll)} << (log2_team - log2_lanes);
}

// The smallest team that walks an average row in kRowBatches batches.
inline TeamLayout plan_teams(int64_t num_edges, int64_t num_rows, int log2_lanes, int unroll) {
  const int64_t degree = average_degree(num_edges, num_rows);
  int log2_team = std::max(log2_lanes, kLog2Warp - kMaxLog2Teams);
  const auto batch = [&] { return team_batch(log2_lanes, log2_team, unroll); };
  while (log2_team < kLog2Warp && kRowBatches * batch() < degree) ++log2_team;
  const int64_t most = log2_team == kLog2Warp ? std::numeric_limits<int32_t>::max() : kTeamBatches * batch();
  return {log2_lanes, log2_team, static_cast<int32_t>(most)};
}

// What an edge takes of a warp.
struct EdgeShape {
  int log2_lanes;    // of a group
  int unroll;        // edges that a group has in flight
  int64_t accesses;  // of a lane, per edge
};

// How warps walk rows that are shared as `sharing` says. All rows are taken to have the average degree.
inline RowWalk walk_of(RowSharing sharing, int64_t num_rows, int64_t num_edges, const EdgeShape& edge) {
  const int log2_groups = kLog2Warp - edge.log2_lanes;
  RowWalk walk{num_rows, num_edges, int64_t{edge.unroll} << log2_groups, 1, edge.accesses * edge.unroll};
  if (sharing == RowSharing::kTeams) {
    const int log2_team = plan_teams(num_edges, num_rows, edge.log2_lanes, edge.unroll).log2_team;
    walk.batch_edges = team_batch(edge.log2_lanes, log2_team, edge.unroll);
    walk.rows_at_once = int64_t{1} << (kLog2Warp - log2_team);
  } else if (sharing == RowSharing::kGroups && average_degree(num_edges, num_rows) <= int64_t{1} << edge.log2_lanes) {
    walk.batch_edges = edge.unroll;
    walk.rows_at_once = int64_t{1} << log2_groups;
  }
  walk.across_rows = sharing == RowSharing::kNone;
  return walk;
}

}  // namespace halfgnn::cuda
