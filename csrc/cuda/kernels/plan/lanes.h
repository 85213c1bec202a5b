// How the lanes of a warp share the rows that sums and maxima gather: groups, teams and slices (glossary: rows.cuh).
#pragma once

#include "slices.h"
#include "teams.h"

namespace halfgnn::cuda {

// How the first of several slices puts weights of edges in order that lie in another: it reads them where they are, and
// leaves each at its position, from where the slices behind it read them.
struct Reordering {
  int64_t once_bytes = 0;    // that an edge reads and writes for it; 0: weights are not put in order
  int64_t stream_bytes = 0;  // that it reads beside its row for every slice, then
};

// For weights of weight_bytes per edge, which take at most as much memory as records may.
inline Reordering reordering_of(const Device& device, int64_t num_edges, int64_t id_bytes, int64_t weight_bytes) {
  const bool is_held = RowCache(device, kCacheOfRows).holds(num_edges * weight_bytes);
  if (is_held || num_edges * weight_bytes > device.memory_bytes / kRecordMemoryParts) return {};
  return {id_bytes + scattered_bytes(device, num_edges, weight_bytes) + weight_bytes, id_bytes + weight_bytes};
}

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
  Reordering reordering = {};
};

struct LanePlan {
  TeamLayout layout;
  int64_t slices;
  bool reorders;  // weights, in the first slice
  Times times;
};

// The choice among groups of different sizes.
class LanePlanner {
 public:
  LanePlanner(const Device& device, const LaneProblem& problem) : device_(device), problem_(problem) {}

  LanePlan plan() const {
    const Choice choice = choose();
    const TeamLayout layout =
        plan_teams(problem_.gathered.num_edges, problem_.num_rows, choice.log2_lanes, problem_.unroll);
    return {layout, slices_of(choice.log2_lanes).count, choice.reorders, times(choice)};
  }

  Slices slices_of(int log2_lanes, bool reorders = false) const {
    const int64_t vectors = int64_t{problem_.repeat} << log2_lanes;
    const double edges = static_cast<double>(problem_.gathered.num_edges);
    const RowWalk walk = walk_of(problem_.work.sharing, problem_.num_rows, problem_.gathered.num_edges,
                                 {log2_lanes, problem_.unroll, problem_.repeat});
    return {ceil_div(num_vectors(), vectors),
            vectors * problem_.vector_bytes,
            true,
            static_cast<double>(problem_.once_bytes * vectors) / static_cast<double>(num_vectors()),
            edges * static_cast<double>(reorders ? problem_.reordering.stream_bytes : problem_.stream_bytes),
            instructions_of(problem_.work, walk)};
  }

 private:
  struct Choice {
    int log2_lanes;
    bool reorders;
  };

  int64_t num_vectors() const { return problem_.gathered.row_bytes / problem_.vector_bytes; }

  Times times(const Choice& choice) const {
    const int64_t of_edge = problem_.once_bytes + (choice.reorders ? problem_.reordering.once_bytes : 0);
    const double results = static_cast<double>(problem_.num_rows) * static_cast<double>(problem_.gathered.row_bytes);
    const double once = results + static_cast<double>(problem_.gathered.num_edges) * static_cast<double>(of_edge);
    return times_of(device_, problem_.gathered, slices_of(choice.log2_lanes, choice.reorders), once);
  }

  Choice choose() const {
    const Choice as_they_lie = fastest_of(false);
    if (problem_.gathered.num_edges == 0 || problem_.reordering.once_bytes == 0) return as_they_lie;
    const Choice in_order = fastest_of(true);
    // The first slice is a launch of its own.
    const bool gains = times(in_order).expected() + kLaunchTime < kPhasesGain * times(as_they_lie).expected();
    return gains && slices_of(in_order.log2_lanes).count > 1 ? in_order : as_they_lie;
  }
  Choice fastest_of(bool reorders) const {
    const int widest = log2_lanes_for(num_vectors(), problem_.repeat);
    const Choice first{widest, reorders};
    if (problem_.gathered.num_edges == 0) return first;
    Fastest<Choice> fastest(first, times(first).total());
    for (int log2_lanes = widest - 1; log2_lanes >= 0; --log2_lanes) {
      const Choice choice{log2_lanes, reorders};
      if (slices_of(log2_lanes).bytes < kMinSliceBytes) break;
      fastest.consider(choice, times(choice).total());
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
