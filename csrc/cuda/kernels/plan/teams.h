// How many lanes share a row of few edges (core/team_layout.h).
#pragma once

#include <algorithm>
#include <limits>

#include "../core/team_layout.h"
#include "model.h"

namespace halfgnn::cuda {

// The smallest team that walks an average row in kRowBatches batches. A group of 2^log2_lanes lanes has `unroll` edges
// in flight, but no more than it has ids for.
inline TeamLayout plan_teams(int64_t num_edges, int64_t num_rows, int log2_lanes, int unroll) {
  const int64_t degree = num_rows > 0 ? ceil_div(num_edges, num_rows) : 0;
  int log2_team = std::max(log2_lanes, kLog2Warp - kMaxLog2Teams);
  const auto batch = [&] { return int64_t{std::min(1 << log2_lanes, unroll)} << (log2_team - log2_lanes); };
  while (log2_team < kLog2Warp && kRowBatches * batch() < degree) ++log2_team;
  const int64_t most = log2_team == kLog2Warp ? std::numeric_limits<int32_t>::max() : kTeamBatches * batch();
  return {log2_lanes, log2_team, static_cast<int32_t>(most)};
}

}  // namespace halfgnn::cuda
