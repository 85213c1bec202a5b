// How the lanes of a warp are divided among rows of few edges. Without CUDA's headers.
#pragma once

#include "warp.h"

namespace halfgnn::cuda {

// Teams of a warp, at most: 2^k.
constexpr int kMaxLog2Teams = 4;

struct TeamLayout {
  int32_t log2_lanes;  // of a group
  int32_t log2_team;   // lanes of a team: one group or several
  int32_t team_edges;  // rows of more edges wait until the whole warp is a team
};

}  // namespace halfgnn::cuda
