// Neighbours of seed nodes, sampled hop by hop. CPU only. Results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "../core/types.h"
#include "../torch/tensor.h"
#include "edge_picks.h"

namespace halfgnn::cpu {

struct SampledRelation {
  Topology in_edges;  // rows are destinations
  size_t src_type = 0, dst_type = 0;
  EdgeWeights weights;                 // without data: all edges are equally likely
  const int64_t* edge_time = nullptr;  // by position; edges of a row are in the order of their times
};

struct SampledNodes {
  const void* seeds = nullptr;
  int64_t num_seeds = 0;
  int64_t num_nodes = 0;          // ids are below
  const int64_t* time = nullptr;  // by node; edges of a row are in the order of their sources' times
  int64_t num_times = 0;
};

struct NeighborSampleArgs {
  std::vector<SampledNodes> types;
  std::vector<SampledRelation> relations;
  std::vector<int64_t> fanouts;  // hops x relations; below 0: all edges
  uint64_t seed = 0;
  bool is_int64 = false;
  bool replace = false;
  bool blocks = false;                 // a hop starts at all nodes so far, not at those of the last hop alone
  bool disjoint = false;               // every seed has a tree of its own, with nodes of its own
  const int64_t* seed_time = nullptr;  // by tree: later nodes or edges are not sampled
  bool latest = false;                 // of those that may be sampled only the last `fanout`
};

struct NeighborSample {
  std::vector<Tensor> nodes, trees;             // of every type
  std::vector<Tensor> offsets, sources, edges;  // of every hop and relation
  std::vector<int64_t> num_nodes;               // (hops + 1) x types: nodes known before each hop, and in the end
  int64_t repeated_seeds = 0;                   // seeds that came twice
};

NeighborSample neighbor_sample(const NeighborSampleArgs& args);

}  // namespace halfgnn::cpu
