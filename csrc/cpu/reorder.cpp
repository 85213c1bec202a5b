// Nodes in the order of communities of communities.
//
// Communities are found, each is contracted to a node, and the same is done to the graph of them, until nothing joins
// any more. Nodes are then sorted by their path from the last level to the first: the nodes of a community are
// neighbours, and so are communities that have many edges to one another. The order follows the hierarchy as in Rabbit
// order (Arai et al., 2016), whose levels fit the levels of caches, but levels are made by label propagation: Rabbit
// order's own merges depend on the order in which threads come.

#include "reorder.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "../torch/errors.h"
#include "communities.h"
#include "threads.h"

namespace halfgnn::cpu {
namespace {

constexpr int kMostLevels = 32;
// Reuse is estimated from so many gathers at least, in stretches of so many windows. Of a stretch only gathers of a
// warm cache are counted.
constexpr int64_t kSample = int64_t{1} << 22;
constexpr int64_t kStretchWindows = 64, kMostStretches = 16;

template <class I>
void check_columns(const I* columns, int64_t count, int64_t bound) {
  I low = 0, high = -1;
  for (int64_t i = 0; i < count; ++i) {
    low = std::min(low, columns[i]);
    high = std::max(high, columns[i]);
  }
  CHECK_VALUE(low >= 0 && static_cast<int64_t>(high) < bound, "indices holds ", low < 0 ? low : high,
              "; expected ids in [0, ", bound, ")");
}

template <class I>
struct Side {
  const I* indptr;
  const I* columns;
  int64_t num_rows;

  Side(const Topology& topology, const char* name)
      : indptr(static_cast<const I*>(topology.indptr)),
        columns(static_cast<const I*>(topology.indices)),
        num_rows(topology.num_rows) {
    CHECK_VALUE(indptr[0] == 0 && static_cast<int64_t>(indptr[num_rows]) == topology.num_edges, name, " runs from ",
                indptr[0], " to ", indptr[num_rows], "; expected 0 to ", topology.num_edges);
    for (int64_t row = 0; row < num_rows; ++row)
      CHECK_VALUE(indptr[row] <= indptr[row + 1], name, " falls after row ", row);
    check_columns(columns, topology.num_edges, num_rows);
  }

  int64_t degree(int64_t row) const {
    return static_cast<int64_t>(indptr[row + 1]) - static_cast<int64_t>(indptr[row]);
  }

  // Equal for rows of the same neighbours in any order, and otherwise unequal with near certainty.
  uint64_t fingerprint(int64_t row) const {
    uint64_t sum = 0;
    for (I i = indptr[row]; i < indptr[row + 1]; ++i) {
      uint64_t x = (static_cast<uint64_t>(columns[i]) + 1) * 0x9e3779b97f4a7c15u;
      x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
      sum += x ^ (x >> 29);
    }
    return sum;
  }
};

// Whether every edge also runs the other way. Its in-edges then say all.
template <class I>
bool is_symmetric(const Side<I>& in, const Side<I>& out) {
  for (int64_t row = 0; row < in.num_rows; ++row) {
    if (in.degree(row) != out.degree(row) || in.fingerprint(row) != out.fingerprint(row)) return false;
  }
  return true;
}

template <class I>
UndirectedGraph undirected(const Topology& in_edges, const Topology& out_edges) {
  const Side<I> in(in_edges, "indptr"), out(out_edges, "out_indptr");
  const bool reads_out = !is_symmetric(in, out);
  const auto num_nodes = static_cast<size_t>(in.num_rows);
  UndirectedGraph graph;
  graph.indptr.resize(num_nodes + 1);
  graph.volumes.resize(num_nodes);
  for (size_t v = 0; v < num_nodes; ++v) {
    const auto row = static_cast<int64_t>(v);
    graph.volumes[v] = in.degree(row) + (reads_out ? out.degree(row) : 0);
    graph.indptr[v + 1] = graph.indptr[v] + graph.volumes[v];
  }
  graph.total_volume = graph.indptr.back();
  graph.neighbours.resize(static_cast<size_t>(graph.total_volume));
  for_rows(in_edges, 2, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int32_t* next = graph.neighbours.data() + graph.indptr[static_cast<size_t>(row)];
      const auto narrowed = [](I column) { return static_cast<int32_t>(column); };
      next = std::transform(in.columns + in.indptr[row], in.columns + in.indptr[row + 1], next, narrowed);
      if (reads_out) std::transform(out.columns + out.indptr[row], out.columns + out.indptr[row + 1], next, narrowed);
    }
  });
  return graph;
}

// Places of the nodes of a level, from the places of their communities. Nodes of one community keep their order.
std::vector<int64_t> places_within(const Communities& level, const std::vector<int64_t>& places) {
  std::vector<int64_t> next(static_cast<size_t>(level.count) + 1, 0);
  const auto place_of = [&](size_t node) { return static_cast<size_t>(places[static_cast<size_t>(level.of[node])]); };
  for (size_t node = 0; node < level.of.size(); ++node) ++next[place_of(node) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<int64_t> result(level.of.size());
  for (size_t node = 0; node < result.size(); ++node) result[node] = next[place_of(node)]++;
  return result;
}

// Nodes without edges come last: among the others they would only lie between neighbours.
std::vector<int64_t> places_of_last_level(const UndirectedGraph& graph) {
  std::vector<int64_t> places(graph.volumes.size());
  int64_t next = 0;
  for (const bool has_edges : {true, false}) {
    for (size_t node = 0; node < places.size(); ++node) {
      if ((graph.volumes[node] > 0) == has_edges) places[node] = next++;
    }
  }
  return places;
}

std::vector<int64_t> places_of(UndirectedGraph graph) {
  const int64_t alone = std::count(graph.volumes.begin(), graph.volumes.end(), 0);  // never joined by another
  std::vector<Communities> levels;
  while (static_cast<int>(levels.size()) < kMostLevels) {
    const int64_t before = graph.num_nodes() - alone;
    levels.push_back(find_communities(graph));
    graph = contracted(graph, levels.back());
    const int64_t after = graph.num_nodes() - alone;
    if (after <= 1 || after * 100 > before * 99) break;
  }
  std::vector<int64_t> places = places_of_last_level(graph);
  for (auto level = levels.rbegin(); level != levels.rend(); ++level) places = places_within(*level, places);
  return places;
}

// A cache of `size` rows that drops the one that was not read for the longest time.
class LruCache {
 public:
  LruCache(int64_t num_rows, int64_t size)
      : slot_(static_cast<size_t>(num_rows), kNone), slots_(static_cast<size_t>(size)) {}

  bool is_full() const { return used_ == static_cast<int32_t>(slots_.size()); }

  // Whether the row is in the cache. It is afterwards.
  bool read(int32_t row) {
    int32_t slot = slot_[static_cast<size_t>(row)];
    const bool is_found = slot != kNone;
    if (is_found) {
      if (slot == newest_) return true;
      unlink(slot);
    } else {
      slot = is_full() ? dropped() : used_++;
      at(slot).row = row;
      slot_[static_cast<size_t>(row)] = slot;
    }
    link(slot);
    return is_found;
  }

  void clear() {
    for (int32_t slot = 0; slot < used_; ++slot) slot_[static_cast<size_t>(at(slot).row)] = kNone;
    used_ = 0;
    newest_ = oldest_ = kNone;
  }

 private:
  static constexpr int32_t kNone = -1;
  struct Slot {
    int32_t row, newer, older;
  };
  Slot& at(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }

  void link(int32_t slot) {
    at(slot).newer = kNone;
    at(slot).older = newest_;
    if (newest_ != kNone) at(newest_).newer = slot;
    newest_ = slot;
    if (oldest_ == kNone) oldest_ = slot;
  }
  void unlink(int32_t slot) {
    const int32_t newer = at(slot).newer, older = at(slot).older;
    (newer == kNone ? newest_ : at(newer).older) = older;
    (older == kNone ? oldest_ : at(older).newer) = newer;
  }
  int32_t dropped() {
    const int32_t slot = oldest_;
    unlink(slot);
    slot_[static_cast<size_t>(at(slot).row)] = kNone;
    return slot;
  }

  std::vector<int32_t> slot_;  // of every row
  std::vector<Slot> slots_;
  int32_t used_ = 0, newest_ = kNone, oldest_ = kNone;
};

template <class I>
Reuse reuse_of(const I* columns, int64_t num_gathers, int64_t num_cols, int64_t window) {
  check_columns(columns, num_gathers, num_cols);
  Reuse result;
  LruCache cache(num_cols, std::max<int64_t>(1, std::min(window, num_cols)));
  const int64_t sample = std::max(kSample, kStretchWindows * std::min(window, num_cols));
  const bool is_sample = num_gathers > sample;
  const int64_t stretches = is_sample ? std::clamp<int64_t>(sample / (kStretchWindows * window), 1, kMostStretches) : 1;
  const int64_t length = std::min(num_gathers, sample) / stretches;
  for (int64_t s = 0; s < stretches; ++s) {
    const int64_t begin = stretches == 1 ? 0 : (num_gathers - length) / (stretches - 1) * s;
    cache.clear();
    for (int64_t i = 0; i < length; ++i) {
      const bool is_warm = !is_sample || cache.is_full() || i >= length / 4;
      const bool is_found = cache.read(static_cast<int32_t>(columns[begin + i]));
      result.gathers += is_warm;
      result.found += is_warm && is_found;
    }
  }
  return result;
}

}  // namespace

void reorder(const Topology& in_edges, const Topology& out_edges, void* new_ids) {
  const std::vector<int64_t> places = places_of(in_edges.is_int64 ? undirected<int64_t>(in_edges, out_edges)
                                                                  : undirected<int32_t>(in_edges, out_edges));
  if (in_edges.is_int64) {
    std::copy(places.begin(), places.end(), static_cast<int64_t*>(new_ids));
  } else {
    std::transform(places.begin(), places.end(), static_cast<int32_t*>(new_ids),
                   [](int64_t place) { return static_cast<int32_t>(place); });
  }
}

Reuse reuse(const void* columns, bool is_int64, int64_t num_gathers, int64_t num_cols, int64_t window) {
  return is_int64 ? reuse_of(static_cast<const int64_t*>(columns), num_gathers, num_cols, window)
                  : reuse_of(static_cast<const int32_t*>(columns), num_gathers, num_cols, window);
}

}  // namespace halfgnn::cpu
