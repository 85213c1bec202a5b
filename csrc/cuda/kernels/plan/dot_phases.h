// Whether dot attention gathers two matrices together, or one after the other.
//
// Together: one kernel, and nothing per edge in memory. But an edge reads two rows, of two matrices that share the L2
// cache; heads are whole, so slices cannot make them smaller if there is one head; and rows of few edges cost a warp
// each. In phases of one matrix each, values of edges lie in memory in between. Forward: the dots of queries and keys
// are written, and the attention of GAT reads them as logits of edges and gathers values alone. Backward: the dots of
// queries and keys and those of gradients and values, the softmax and its gradient, and three weighted sums.
#pragma once

#include "heads.h"
#include "lanes.h"

namespace halfgnn::cuda {

struct DotAttentionProblem {
  int64_t num_dst, num_src, num_edges;
  int64_t heads, dim, element_bytes;
  int64_t id_bytes;
};

class DotPhasesPlanner {
 public:
  DotPhasesPlanner(const Device& device, const DotAttentionProblem& problem) : device_(device), problem_(problem) {}

  // ---- Forward.

  Times together() const { return together(to_destinations(), kDotAttentionWork[0]); }
  // Of queries and keys; with the gradient's rows and values the same.
  Times dots() const {
    const int64_t written = problem_.id_bytes + logit_bytes() * problem_.heads;
    return times(to_destinations(), 1, kLog2Warp - 3, {kDotWork, written, 0, false});
  }
  Times values() const {
    return times(to_destinations(), 1, kLog2Warp - 2, {kGatWork, problem_.id_bytes, logit_bytes(), true});
  }
  bool takes_phases() const {
    if (!fits(1)) return false;
    return gains(dots().expected() + values().expected() + kLaunchTime, together().expected());
  }

  // ---- Backward. In phases: of calls whose in-edges have their ids in order.

  // Arrays of one value per edge and head: logits, weights, and their gradients in place of the logits and behind them.
  static constexpr int64_t kBackwardArrays = 3;

  Times together_to_destinations() const { return together(to_destinations(), kDotAttentionWork[1]); }
  Times together_to_sources() const { return together(to_sources(), kDotAttentionWork[2]); }
  // The softmax reads logits and writes weights; its gradient reads these and theirs, and writes those of logits.
  Times softmaxes() const { return {0, static_cast<double>(5 * logits_bytes()) / device_.rates.memory, 0}; }
  Times sum_to_destinations() const { return sum(to_destinations(), weight_bytes(), {}); }
  Times sum_to_sources() const {
    const int64_t scattered = problem_.id_bytes + scattered_bytes(device_, problem_.num_edges, weight_bytes());
    const bool may_reorder = problem_.heads == 1;
    return sum(
        to_sources(), scattered,
        may_reorder ? reordering_of(device_, problem_.num_edges, problem_.id_bytes, weight_bytes()) : Reordering{});
  }
  double backward_together() const { return together_to_destinations().expected() + together_to_sources().expected(); }
  double backward_in_phases() const {
    constexpr int kMoreLaunches = 5;  // seven in place of two
    return 2 * dots().expected() + softmaxes().expected() + sum_to_destinations().expected() +
           2 * sum_to_sources().expected() + kMoreLaunches * kLaunchTime;
  }
  bool backward_takes_phases() const {
    return fits(kBackwardArrays) && gains(backward_in_phases(), backward_together());
  }

 private:
  // Who gathers whose rows.
  struct Side {
    int64_t rows, columns;
  };
  Side to_destinations() const { return {problem_.num_dst, problem_.num_src}; }
  Side to_sources() const { return {problem_.num_src, problem_.num_dst}; }

  // fp32, whatever the type of the features.
  static int64_t logit_bytes() { return sizeof(float); }
  int64_t weight_bytes() const { return problem_.heads * logit_bytes(); }
  int64_t logits_bytes() const { return problem_.num_edges * weight_bytes(); }
  int64_t row_bytes() const { return problem_.heads * problem_.dim * problem_.element_bytes; }
  bool fits(int64_t arrays) const { return arrays * logits_bytes() <= device_.memory_bytes / kRecordMemoryParts; }
  static bool gains(double phases, double together) { return phases < kPhasesGain * together; }

  // Of a kernel that reads or writes edge_bytes per edge, and head_bytes per edge and head.
  struct Kernel {
    const RowWork& work;
    int64_t edge_bytes, head_bytes;
    bool cuts_heads;
  };
  Times together(const Side& side, const RowWork& work) const {
    return times(side, 2, kLog2Warp - 2, {work, problem_.id_bytes, 0, false});
  }
  // matrices: that an edge reads a row of.
  Times times(const Side& side, int64_t matrices, int max_log2_groups, const Kernel& kernel) const {
    const Gathered gathered{side.columns, matrices * row_bytes(), problem_.num_edges};
    const HeadShape shape{problem_.heads, ceil_div(problem_.dim * problem_.element_bytes, kAccessBytes), 1,
                          max_log2_groups};
    const bool cuts_heads = kernel.cuts_heads;
    const HeadStream stream{side.rows,         kernel.work, cuts_heads ? kernel.edge_bytes : kHeadSliceBytes,
                            kernel.head_bytes, 0,           cuts_heads ? kPairWork : 0};
    const HeadPlanner planner(device_, shape, gathered, matrices * kAccessBytes, stream, cuts_heads);
    Slices slices = planner.slices_of(planner.choose(cuts_heads ? 0 : shape.widest_log2_lanes()));
    if (!cuts_heads) slices.streamed = static_cast<double>(problem_.num_edges * kernel.edge_bytes);
    return times_of(device_, gathered, slices, static_cast<double>(2 * side.rows * row_bytes()));
  }
  // With weights that take weight_stream bytes of an edge.
  Times sum(const Side& side, int64_t weight_stream, const Reordering& reordering) const {
    const LaneProblem problem{{side.columns, row_bytes(), problem_.num_edges},
                              side.rows,
                              problem_.id_bytes + weight_stream,
                              kAccessBytes,
                              1,
                              4,
                              kWeightedSumWork,
                              0,
                              reordering};
    return plan_lanes(device_, problem).times;
  }

  const Device& device_;
  const DotAttentionProblem problem_;
};

}  // namespace halfgnn::cuda
