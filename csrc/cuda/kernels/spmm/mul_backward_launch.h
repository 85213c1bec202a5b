// Between mul_backward.cu, which chooses, and mul_backward.cuh, which holds the kernel.
#pragma once

#include "../core/heads.cuh"
#include "../core/row_teams.cuh"
#include "mul_backward.h"

namespace halfgnn::cuda {

// Edges of a group in flight, of which a lane has so many bytes: 64 bytes per lane, 128 if rows are wide.
constexpr int edges_in_flight(int64_t lane_bytes) { return lane_bytes > 32 ? 2 : 4; }

// Chosen from sizes and alignment alone.
struct MulPlan {
  int vector;  // elements of an access
  int repeat;  // accesses per lane and row
  HeadLayout layout;
  TeamUnits units;
  float* partial;  // grad_feat of pieces of long rows, a row per slot
  float* dots;     // if heads have several tiles: grad_weight of the tiles done so far, (position, head)
};

// For features of type T. The build instantiates it: build_sources.py.
template <typename T>
cudaError_t mul_backward_of(const MulBackwardArgs& args, const MulPlan& plan, const Launch& launch);

}  // namespace halfgnn::cuda
