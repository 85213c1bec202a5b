#include "communities.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "../torch/threads.h"

namespace halfgnn::cpu {
namespace {

constexpr int kMostRounds = 5;
constexpr int64_t kFewMoves = 100;  // a round that moves less than one node of so many is the last
constexpr uint32_t kClasses = 4;
constexpr int64_t kNodesPerPiece = 512;
constexpr int64_t kMostPieces = 256;

// Calls work(state, piece) for every piece. Threads take pieces as they come, and each has a State of its own.
template <class State, class Work>
void take_pieces(int64_t pieces, const Work& work) {
  std::atomic<int64_t> next{0};
  parallel_for(0, std::min<int64_t>(num_threads(), pieces), 1, [&](int64_t, int64_t) {
    State state;
    for (int64_t piece = next++; piece < pieces; piece = next++) work(state, piece);
  });
}

// Sums of weights by key: a hash table with open addressing. Entries are listed in the order of their first addition.
class Sums {
 public:
  // Empties the table. At most `most` different keys may be added.
  void reset(int64_t most) {
    for (const size_t place : used_) keys_[place] = kNone;
    used_.clear();
    size_t size = 16;
    while (size < static_cast<size_t>(2 * most)) size *= 2;
    if (keys_.size() < size) {
      keys_.assign(size, kNone);
      sums_.assign(size, 0);
    }
    mask_ = size - 1;
  }
  void add(int32_t key, int64_t weight) {
    size_t place = ((static_cast<uint32_t>(key) * 2654435769u) >> 7) & mask_;
    while (keys_[place] != key && keys_[place] != kNone) place = (place + 1) & mask_;
    if (keys_[place] == kNone) {
      keys_[place] = key;
      sums_[place] = 0;
      used_.push_back(place);
    }
    sums_[place] += weight;
  }
  // Calls visit(key, sum) for every key.
  template <class Visit>
  void each(const Visit& visit) const {
    for (const size_t place : used_) visit(keys_[place], sums_[place]);
  }

 private:
  static constexpr int32_t kNone = -1;
  std::vector<int32_t> keys_;
  std::vector<int64_t> sums_;
  std::vector<size_t> used_;
  size_t mask_ = 0;
};

// Calls visit(neighbour, weight) for the row of a node.
template <class Visit>
void each_neighbour(const UndirectedGraph& graph, int64_t node, const Visit& visit) {
  const int64_t begin = graph.indptr[static_cast<size_t>(node)], end = begin + graph.degree(node);
  for (int64_t i = begin; i < end; ++i) {
    const auto at = static_cast<size_t>(i);
    visit(graph.neighbours[at], graph.weights.empty() ? int64_t{1} : graph.weights[at]);
  }
}

// Spreads the bits of a node's id, so that its class has nothing to do with the order of ids.
uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// The moves of nodes between communities. Nodes are divided into classes that move one after the other. The nodes of
// a class all decide by what is known before any of them moves, so neither threads nor the order of nodes matter. If
// all nodes moved at once, two neighbours could exchange their communities for ever.
class Moves {
 public:
  explicit Moves(const UndirectedGraph& graph)
      : graph_(graph), label_(graph.volumes.size()), next_(graph.volumes.size()), volumes_(graph.volumes) {
    std::iota(label_.begin(), label_.end(), 0);
    for (size_t node = 0; node < label_.size(); ++node) {
      if (graph.degree(static_cast<int64_t>(node)) > 0)
        classes_[mixed(static_cast<uint32_t>(node)) % kClasses].push_back(static_cast<int32_t>(node));
    }
  }

  std::vector<int32_t> run() {
    for (int round = 0; round < kMostRounds; ++round) {
      int64_t moved = 0;
      for (const std::vector<int32_t>& nodes : classes_) moved += move(nodes);
      if (moved * kFewMoves < graph_.num_nodes()) break;
    }
    return std::move(label_);
  }

 private:
  int64_t move(const std::vector<int32_t>& nodes) {
    const auto size = static_cast<int64_t>(nodes.size());
    take_pieces<Sums>((size + kNodesPerPiece - 1) / kNodesPerPiece, [&](Sums& sums, int64_t piece) {
      const int64_t end = std::min(size, (piece + 1) * kNodesPerPiece);
      for (int64_t i = piece * kNodesPerPiece; i < end; ++i) {
        const auto node = static_cast<size_t>(nodes[static_cast<size_t>(i)]);
        next_[node] = best(sums, node);
      }
    });
    int64_t moved = 0;
    for (const int32_t id : nodes) {
      const auto node = static_cast<size_t>(id);
      if (next_[node] == label_[node]) continue;
      volumes_[static_cast<size_t>(label_[node])] -= graph_.volumes[node];
      volumes_[static_cast<size_t>(next_[node])] += graph_.volumes[node];
      label_[node] = next_[node];
      ++moved;
    }
    return moved;
  }

  // The community that has most edges to the node beyond those to be expected. Its own, if no other has more; otherwise
  // the first of equals.
  int32_t best(Sums& sums, size_t node) const {
    const auto id = static_cast<int64_t>(node);
    const int32_t own = label_[node];
    sums.reset(graph_.degree(id) + 1);
    sums.add(own, 0);
    each_neighbour(graph_, id, [&](int32_t neighbour, int64_t weight) {
      if (neighbour != id) sums.add(label_[static_cast<size_t>(neighbour)], weight);
    });
    const double share = static_cast<double>(graph_.volumes[node]) / static_cast<double>(graph_.total_volume);
    const auto score = [&](int32_t label, int64_t weight) {
      const int64_t others = volumes_[static_cast<size_t>(label)] - (label == own ? graph_.volumes[node] : 0);
      return static_cast<double>(weight) - share * static_cast<double>(others);
    };
    int32_t best = own;
    double most = 0;
    bool is_first = true;  // the node's own community was added first
    sums.each([&](int32_t label, int64_t weight) {
      const double gain = score(label, weight);
      if (is_first || gain > most || (gain == most && best != own && label < best)) {
        best = label;
        most = gain;
      }
      is_first = false;
    });
    return best;
  }

  const UndirectedGraph& graph_;
  std::vector<int32_t> label_, next_;
  std::vector<int64_t> volumes_;  // of every community
  std::vector<int32_t> classes_[kClasses];
};

// The nodes of every community, one community after the other.
struct Members {
  std::vector<int64_t> indptr;  // communities + 1
  std::vector<int32_t> nodes;
};

Members members_of(const Communities& communities) {
  Members members{std::vector<int64_t>(static_cast<size_t>(communities.count) + 1, 0),
                  std::vector<int32_t>(communities.of.size())};
  for (const int32_t community : communities.of) ++members.indptr[static_cast<size_t>(community) + 1];
  std::partial_sum(members.indptr.begin(), members.indptr.end(), members.indptr.begin());
  std::vector<int64_t> next(members.indptr.begin(), members.indptr.end() - 1);
  for (size_t node = 0; node < communities.of.size(); ++node)
    members.nodes[static_cast<size_t>(next[static_cast<size_t>(communities.of[node])]++)] = static_cast<int32_t>(node);
  return members;
}

// Rows of neighbouring communities, before they are joined with those of others.
struct Rows {
  std::vector<int32_t> neighbours;
  std::vector<int64_t> weights;
};

}  // namespace

Communities find_communities(const UndirectedGraph& graph) {
  Communities communities{Moves(graph).run()};
  std::vector<int32_t> number(communities.of.size(), -1);
  for (int32_t& community : communities.of) {
    int32_t& known = number[static_cast<size_t>(community)];
    if (known < 0) known = static_cast<int32_t>(communities.count++);
    community = known;
  }
  return communities;
}

UndirectedGraph contracted(const UndirectedGraph& graph, const Communities& communities) {
  const int64_t count = communities.count;
  const Members members = members_of(communities);
  UndirectedGraph result;
  result.total_volume = graph.total_volume;
  result.volumes.assign(static_cast<size_t>(count), 0);
  std::vector<int64_t> work(static_cast<size_t>(count) + 1, 0);  // edges and nodes before every community
  for (size_t c = 0; c < static_cast<size_t>(count); ++c) {
    for (int64_t i = members.indptr[c]; i < members.indptr[c + 1]; ++i) {
      const int32_t node = members.nodes[static_cast<size_t>(i)];
      result.volumes[c] += graph.volumes[static_cast<size_t>(node)];
      work[c + 1] += graph.degree(node) + 1;
    }
    work[c + 1] += work[c];
  }
  const int64_t pieces = std::min(kMostPieces, count);
  const auto first_of = [&](int64_t piece) {
    const double target = static_cast<double>(work.back()) * static_cast<double>(piece) / static_cast<double>(pieces);
    return std::lower_bound(work.begin(), work.end() - 1, static_cast<int64_t>(target)) - work.begin();
  };
  std::vector<Rows> rows(static_cast<size_t>(pieces));
  result.indptr.assign(static_cast<size_t>(count) + 1, 0);
  take_pieces<Sums>(pieces, [&](Sums& sums, int64_t piece) {
    Rows& own = rows[static_cast<size_t>(piece)];
    const auto end = static_cast<size_t>(piece + 1 == pieces ? count : first_of(piece + 1));
    for (auto c = static_cast<size_t>(first_of(piece)); c < end; ++c) {
      sums.reset(std::min(work[c + 1] - work[c], count));
      for (int64_t i = members.indptr[c]; i < members.indptr[c + 1]; ++i) {
        each_neighbour(graph, members.nodes[static_cast<size_t>(i)], [&](int32_t neighbour, int64_t weight) {
          sums.add(communities.of[static_cast<size_t>(neighbour)], weight);
        });
      }
      const size_t before = own.neighbours.size();
      sums.each([&](int32_t community, int64_t weight) {
        own.neighbours.push_back(community);
        own.weights.push_back(weight);
      });
      result.indptr[c + 1] = static_cast<int64_t>(own.neighbours.size() - before);
    }
  });
  std::partial_sum(result.indptr.begin(), result.indptr.end(), result.indptr.begin());
  result.neighbours.reserve(static_cast<size_t>(result.indptr.back()));
  result.weights.reserve(static_cast<size_t>(result.indptr.back()));
  for (Rows& own : rows) {
    result.neighbours.insert(result.neighbours.end(), own.neighbours.begin(), own.neighbours.end());
    result.weights.insert(result.weights.end(), own.weights.begin(), own.weights.end());
    own = Rows{};
  }
  return result;
}

}  // namespace halfgnn::cpu
