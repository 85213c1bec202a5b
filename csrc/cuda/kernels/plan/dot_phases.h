// Whether the forward of dot attention gathers keys and values together, or one after the other.
//
// Together: one kernel, and nothing per edge in memory. But an edge reads two rows, of two matrices that share the L2
// cache; heads are whole, so slices cannot make them smaller if there is one head; and rows of few edges cost a warp
// each. In two phases the dots of queries and keys are written, and the attention of GAT reads them as logits of edges
// and gathers values alone.
#pragma once

#include "heads.h"

namespace halfgnn::cuda {

struct DotAttentionProblem {
  int64_t num_dst, num_src, num_edges;
  int64_t heads, dim, element_bytes;
  int64_t id_bytes;
};

class DotPhasesPlanner {
 public:
  DotPhasesPlanner(const Device& device, const DotAttentionProblem& problem) : device_(device), problem_(problem) {}

  Times together() const {
    const Gathered gathered{problem_.num_src, 2 * row_bytes(), problem_.num_edges};
    return times(gathered, shape(kLog2Warp - 2), kDotAttentionWork[0], 2 * kAccessBytes, problem_.id_bytes, 0, false);
  }
  Times dots() const {
    const int64_t written = problem_.id_bytes + logit_bytes() * problem_.heads;
    return times(one_matrix(), shape(kLog2Warp - 3), kDotWork, kAccessBytes, written, 0, false);
  }
  Times values() const {
    return times(one_matrix(), shape(kLog2Warp - 2), kGatWork, kAccessBytes, problem_.id_bytes, logit_bytes(), true);
  }

  // fp32, whatever the type of the features.
  int64_t logits_bytes() const { return problem_.num_edges * problem_.heads * logit_bytes(); }
  bool takes_two() const {
    if (logits_bytes() > device_.memory_bytes / kRecordMemoryParts) return false;
    const double two = dots().expected() + values().expected() + kLaunchTime;
    return two < kPhasesGain * together().expected();
  }

 private:
  static int64_t logit_bytes() { return sizeof(float); }
  int64_t row_bytes() const { return problem_.heads * problem_.dim * problem_.element_bytes; }
  Gathered one_matrix() const { return {problem_.num_src, row_bytes(), problem_.num_edges}; }
  HeadShape shape(int max_log2_groups) const {
    return {problem_.heads, ceil_div(problem_.dim * problem_.element_bytes, kAccessBytes), 1, max_log2_groups};
  }

  // Of a kernel that reads or writes `edge_bytes` per edge, and `head_bytes` per edge and head. lane_bytes: that a lane
  // reads for an edge.
  Times times(const Gathered& gathered, const HeadShape& shape, const RowWork& work, int64_t lane_bytes,
              int64_t edge_bytes, int64_t head_bytes, bool cuts_heads) const {
    const double pairs = cuts_heads ? kPairWork : 0;
    const HeadStream stream{problem_.num_dst, work, cuts_heads ? edge_bytes : kHeadSliceBytes, head_bytes, 0, pairs};
    const HeadPlanner planner(device_, shape, gathered, lane_bytes, stream, cuts_heads);
    Slices slices = planner.slices_of(planner.choose(cuts_heads ? 0 : shape.widest_log2_lanes()));
    if (!cuts_heads) slices.streamed = static_cast<double>(problem_.num_edges * edge_bytes);
    return times_of(device_, gathered, slices, static_cast<double>(2 * problem_.num_dst * row_bytes()));
  }

  const Device& device_;
  const DotAttentionProblem problem_;
};

}  // namespace halfgnn::cuda
