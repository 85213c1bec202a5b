// Communities of an undirected graph, and the graph of the communities: the two steps that csrc/cpu/reorder.cpp
// repeats. Both run on PyTorch's threads, and their results do not depend on the number of threads.
//
// Communities are made by local moves (Blondel et al., 2008, "Fast unfolding of communities in large networks"), which
// are label propagation (Raghavan et al., 2007) with a score that also counts the edges to be expected by chance: the
// gain in modularity. Without that part labels of sparse graphs spread until one of them is everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace halfgnn::cpu {

// Every edge is in the rows of both of its ends. The weight of a loop, in the row of its node, counts both ends.
struct UndirectedGraph {
  std::vector<int64_t> indptr{0};   // num_nodes + 1
  std::vector<int32_t> neighbours;  // they may repeat
  std::vector<int64_t> weights;     // one per neighbour; empty: all are 1
  std::vector<int64_t> volumes;     // one per node: the sum of the weights of its row
  int64_t total_volume = 0;         // of all nodes

  int64_t num_nodes() const { return static_cast<int64_t>(volumes.size()); }
  int64_t degree(int64_t node) const {
    return indptr[static_cast<size_t>(node) + 1] - indptr[static_cast<size_t>(node)];
  }
};

struct Communities {
  std::vector<int32_t> of;  // the community of every node
  int64_t count = 0;        // they are numbered in the order of their first nodes
};

Communities find_communities(const UndirectedGraph& graph);

// One node per community. Edges inside a community become its loop.
UndirectedGraph contracted(const UndirectedGraph& graph, const Communities& communities);

}  // namespace halfgnn::cpu
