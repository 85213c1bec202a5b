// How the lanes of a warp share the rows that sums and maxima gather: groups, teams and slices (glossary: rows.cuh).
#pragma once

#include "slices.h"
#include "teams.h"

namespace halfgnn::cuda {

// What a launcher and a kernel know of a gather.
struct LaneProblem {
  Gathered gathered;
  int64_t num_rows;      // of results
  int64_t stream_bytes;  // that an edge reads beside its row, for every slice: ids and weights
  int vector_bytes;      // of an access
  int repeat;            // accesses of a lane in a slice
  int unroll;            // edges that a group has in flight, if it has ids of so many
  RowWork work;
  int64_t once_bytes = 0;  // that an edge reads or writes beside these, once however many slices there are
};

struct LanePlan {
  TeamLayout layout;
  int64_t slices;
};

// The choice among groups of different sizes.
class LanePlanner {
 public:
  LanePlanner(const Device& device, const LaneProblem& problem) : device_(device), problem_(problem) {}

  LanePlan plan() const {
    const int log2_lanes = choose_log2_lanes();
    return {plan_teams(problem_.gathered.num_edges, problem_.num_rows, log2_lanes, problem_.unroll),
            slices_of(log2_lanes).count};
  }

  Slices slices_of(int log2_lanes) const {
    const int64_t vectors = int64_t{problem_.repeat} << log2_lanes;
    const double edges = static_cast<double>(problem_.gathered.num_edges);
    const RowWalk walk = walk_of(problem_.work.sharing, problem_.num_rows, problem_.gathered.num_edges,
                                 {log2_lanes, problem_.unroll, problem_.repeat});
    return {ceil_div(num_vectors(), vectors),
            vectors * problem_.vector_bytes,
            true,
            static_cast<double>(problem_.once_bytes * vectors) / static_cast<double>(num_vectors()),
            edges * static_cast<double>(problem_.stream_bytes),
            instructions_of(problem_.work, walk)};
  }

 private:
  int64_t num_vectors() const { return problem_.gathered.row_bytes / problem_.vector_bytes; }

  int choose_log2_lanes() const {
    const int widest = log2_lanes_for(num_vectors(), problem_.repeat);
    if (problem_.gathered.num_edges == 0) return widest;
    const double once =
        static_cast<double>(problem_.num_rows) * static_cast<double>(problem_.gathered.row_bytes) +  // results
        static_cast<double>(problem_.gathered.num_edges) * static_cast<double>(problem_.once_bytes);
    const auto time = [&](const Slices& slices) { return times_of(device_, problem_.gathered, slices, once).total(); };
    Fastest<int> fastest(widest, time(slices_of(widest)));
    for (int log2_lanes = widest - 1; log2_lanes >= 0; --log2_lanes) {
      const Slices slices = slices_of(log2_lanes);
      if (slices.bytes < kMinSliceBytes) break;
      fastest.consider(log2_lanes, time(slices));
    }
    return fastest.choice();
  }

  const Device& device_;
  const LaneProblem& problem_;
};

inline LanePlan plan_lanes(const Device& device, const LaneProblem& problem) {
  return LanePlanner(device, problem).plan();
}

}  // namespace halfgnn::cuda
