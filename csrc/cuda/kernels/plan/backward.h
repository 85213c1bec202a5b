// Whether the backward of a weighted sum takes one gather or two.
//
// One gather: the rows of the gradient, over out-edges, give both gradients. Neighbours among out-edges are not
// neighbours in edge data, so weights and their gradients are scattered. If they do not fit in the L2 cache, an edge
// waits for an access of memory for its weight, and its gradient changes a part of a sector, which costs most.
//
// Two gathers: dots over in-edges write the gradient of the weights, in order if edge data has the order of in-edges.
// Then a weighted sum over out-edges reads the weights, scattered too. Rows are gathered twice, but no part of a sector
// is written.
#pragma once

#include "slices.h"
#include "teams.h"

namespace halfgnn::cuda {

struct WeightedBackward {
  int64_t num_src, num_dst, num_edges;
  int64_t row_bytes;     // of features and of gradients
  int64_t weight_bytes;  // per edge
  int64_t id_bytes;
  bool in_edges_in_order;  // edge data has the order of in-edges
};

class WeightedBackwardPlanner {
 public:
  WeightedBackwardPlanner(const Device& device, const WeightedBackward& problem) : device_(device), problem_(problem) {}

  // Without slices: rows for which two gathers may be faster are narrow.
  Times one_gather() const {
    return times(problem_.num_dst, {kMulBackwardWork, problem_.num_src}, 2 * problem_.num_src,
                 2 * problem_.id_bytes + scattered_read() + scattered_write());
  }
  Times dots() const {
    const bool in_order = problem_.in_edges_in_order;
    return times(problem_.num_src, {kDotWork, problem_.num_dst}, problem_.num_dst,
                 problem_.id_bytes + (in_order ? problem_.weight_bytes : problem_.id_bytes + scattered_write()));
  }
  Times sums() const {
    return times(problem_.num_dst, {kWeightedSumWork, problem_.num_src}, problem_.num_src,
                 2 * problem_.id_bytes + scattered_read());
  }
  // By the bounds: the measured times of both are nearer to them than to the totals.
  bool takes_two_gathers() const {
    return !weights_fit() && dots().bound() + sums().bound() < kSlicingGain * one_gather().bound();
  }

 private:
  bool weights_fit() const { return RowCache(device_, kCacheOfRows).holds(problem_.num_edges * problem_.weight_bytes); }
  int64_t scattered_read() const { return scattered_bytes(device_, problem_.num_edges, problem_.weight_bytes); }
  int64_t scattered_write() const {
    const bool is_part = !weights_fit() && problem_.weight_bytes % kSectorBytes != 0;
    return is_part ? kPartialWriteBytes : scattered_read();
  }

  struct Kernel {
    const RowWork& work;
    int64_t num_rows;
  };
  // Of a kernel that gathers some of `columns` rows, and reads or writes `own_rows` others once.
  Times times(int64_t columns, const Kernel& kernel, int64_t own_rows, int64_t edge_bytes) const {
    const int log2_lanes = log2_lanes_for(ceil_div(problem_.row_bytes, kAccessBytes), 1);
    const RowWalk walk = walk_of(kernel.work.sharing, kernel.num_rows, problem_.num_edges, {log2_lanes, 4, 1});
    const Slices whole{1,
                       problem_.row_bytes,
                       false,
                       0,
                       static_cast<double>(problem_.num_edges) * static_cast<double>(edge_bytes),
                       instructions_of(kernel.work, walk)};
    const double own = static_cast<double>(own_rows) * static_cast<double>(problem_.row_bytes);
    return times_of(device_, {columns, problem_.row_bytes, problem_.num_edges}, whole, own);
  }

  const Device& device_;
  const WeightedBackward& problem_;
};

}  // namespace halfgnn::cuda
