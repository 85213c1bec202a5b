// A hop over a relation: how many edges each row gives, which edges these are, and local ids for their sources. Rows
// are divided among threads. A row's random numbers depend on the seed, the hop, the relation, the row's node and its
// tree. Local ids are given in one thread, in the order of rows, because their order is part of the result.

#include "neighbor_sample.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <utility>

#include "../torch/errors.h"
#include "node_table.h"
#include "threads.h"

namespace halfgnn::cpu {
namespace {

constexpr int64_t kMostEdges = std::numeric_limits<int32_t>::max();  // of a hop and relation, and nodes of a type
constexpr int64_t kAhead = 16;                                       // slots of the table that are fetched ahead

template <class I>
struct InEdges {
  const I* indptr;
  const I* indices;
  const I* edge_ids;

  explicit InEdges(const Topology& topology)
      : indptr(static_cast<const I*>(topology.indptr)),
        indices(static_cast<const I*>(topology.indices)),
        edge_ids(static_cast<const I*>(topology.edge_ids)) {}
};

// Whether no weight of a row's edges is negative, infinite or nan.
template <class T>
bool are_weights(const T* weights, EdgeRange row) {
  bool valid = true;
  for (int64_t i = row.begin; i < row.begin + row.degree; ++i)
    valid &= weights[i] >= 0 && weights[i] <= std::numeric_limits<T>::max();
  return valid;
}

bool are_valid(const EdgeWeights& weights, EdgeRange row) {
  return !weights || (weights.is_double ? are_weights(static_cast<const double*>(weights.data), row)
                                        : are_weights(static_cast<const float*>(weights.data), row));
}

// The nodes at which a hop over a relation starts: first ... first + count - 1 of their type.
struct Frontier {
  int64_t first, count;
};

template <class I>
class Sampler {
 public:
  explicit Sampler(const NeighborSampleArgs& args) : args_(args), num_relations_(args.relations.size()) {
    for (const SampledNodes& nodes : args.types) tables_.emplace_back(nodes.num_nodes, args.disjoint);
  }

  NeighborSample sampled() {
    add_seeds();
    std::vector<int64_t> last(tables_.size(), 0);  // where the nodes of the last hop begin
    const size_t hops = num_relations_ == 0 ? 0 : args_.fanouts.size() / num_relations_;
    for (size_t hop = 0; hop < hops; ++hop) {
      const std::vector<int64_t> known = sizes();
      for (size_t r = 0; r < num_relations_; ++r) {
        const size_t type = args_.relations[r].dst_type;
        const int64_t first = args_.blocks ? 0 : last[type];
        sample_relation(hop, r, {first, known[type] - first});
      }
      last = known;
      append_counts();
    }
    for (const NodeTable<I>& table : tables_) {
      result_.nodes.push_back(tensor_of(table.nodes()));
      if (args_.disjoint) result_.trees.push_back(tensor_of(table.trees()));
    }
    return std::move(result_);
  }

 private:
  void add_seeds() {
    int32_t tree = 0;
    for (size_t type = 0; type < tables_.size(); ++type) {
      const SampledNodes& nodes = args_.types[type];
      tables_[type].reserve(nodes.num_seeds);
      for (int64_t i = 0; i < nodes.num_seeds; ++i) {
        const I seed = static_cast<const I*>(nodes.seeds)[i];
        result_.repeated_seeds += !tables_[type].add(seed, args_.disjoint ? tree++ : 0);
      }
    }
    append_counts();
  }

  std::vector<int64_t> sizes() const {
    std::vector<int64_t> sizes;
    for (const NodeTable<I>& table : tables_) sizes.push_back(table.size());
    return sizes;
  }
  void append_counts() {
    for (const int64_t size : sizes()) result_.num_nodes.push_back(size);
  }

  void sample_relation(size_t hop, size_t r, Frontier frontier) {
    const SampledRelation& relation = args_.relations[r];
    const int64_t fanout = args_.fanouts[hop * num_relations_ + r];
    Tensor offsets = empty({frontier.count + 1}, options_of(ScalarType::Int, DeviceType::CPU));
    const std::vector<EdgeRange> rows = rows_of(relation, frontier, fanout, offsets.mutable_data_ptr<int32_t>());
    const int64_t total = offsets.const_data_ptr<int32_t>()[frontier.count];
    Tensor edges = empty({total}, options_of(args_.is_int64 ? ScalarType::Long : ScalarType::Int, DeviceType::CPU));
    const Tensor columns = empty_like(edges);
    const RandomWords key = philox(args_.seed, static_cast<uint64_t>(hop * num_relations_ + r), 0);
    pick_edges(relation, frontier, fanout, uint64_t{key.word[1]} << 32 | key.word[0], rows,
               offsets.const_data_ptr<int32_t>(), columns.mutable_data_ptr<I>(), edges.mutable_data_ptr<I>());
    result_.sources.push_back(
        local_ids_of(relation, frontier, offsets.const_data_ptr<int32_t>(), columns.const_data_ptr<I>(), total));
    result_.offsets.push_back(std::move(offsets));
    result_.edges.push_back(std::move(edges));
  }

  // The edges of each row that may be sampled. offsets: where the sampled edges of each row begin.
  std::vector<EdgeRange> rows_of(const SampledRelation& relation, Frontier frontier, int64_t fanout, int32_t* offsets) {
    std::vector<EdgeRange> rows(static_cast<size_t>(frontier.count));
    const EdgePicks picks(relation.weights, fanout, args_.replace);
    std::vector<int64_t> counts(rows.size());
    std::atomic<int64_t> invalid{-1}, unweighable{-1};
    for_items(frontier.count, relation.weights ? 256 : 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<size_t>(i);
        if (!range_of(relation, frontier.first + i, fanout, &rows[at])) invalid = frontier.first + i;
        if (!are_valid(relation.weights, rows[at])) unweighable = i;
        counts[at] = picks.count(rows[at]);
      }
    });
    check_row(relation, invalid);
    if (unweighable >= 0) refuse_weights(relation, rows[static_cast<size_t>(unweighable)]);
    int64_t total = 0;
    offsets[0] = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      total += counts[i];
      CHECK_VALUE(total <= kMostEdges, "fanouts would sample more than ", kMostEdges,
                  " edges of one relation in one hop; expected fewer seeds or smaller fanouts");
      offsets[i + 1] = static_cast<int32_t>(total);
    }
    return rows;
  }

  // Whether the node's row can be read.
  bool range_of(const SampledRelation& relation, int64_t local, int64_t fanout, EdgeRange* range) const {
    const NodeTable<I>& table = tables_[relation.dst_type];
    const auto node = static_cast<int64_t>(table.nodes()[static_cast<size_t>(local)]);
    if (fanout == 0) return true;
    const InEdges<I> in(relation.in_edges);
    const auto begin = static_cast<int64_t>(in.indptr[node]);
    const auto end = static_cast<int64_t>(in.indptr[node + 1]);
    if (begin < 0 || begin > end || end > relation.in_edges.num_edges) return false;
    *range = {begin, end - begin};
    return args_.seed_time == nullptr || drop_later(relation, args_.seed_time[table.tree(local)], fanout, range);
  }

  // Leaves the edges that are not later than the seed, or the latest of these. Returns whether all sources that were
  // looked at have a time.
  bool drop_later(const SampledRelation& relation, int64_t seed_time, int64_t fanout, EdgeRange* range) const {
    const SampledNodes& sources = args_.types[relation.src_type];
    if (relation.edge_time == nullptr && sources.time == nullptr) return true;
    const InEdges<I> in(relation.in_edges);
    int64_t begin = range->begin, end = range->begin + range->degree;
    while (begin < end) {
      const int64_t middle = begin + (end - begin) / 2;
      const auto source = static_cast<int64_t>(in.indices[middle]);
      if (relation.edge_time == nullptr && (source < 0 || source >= sources.num_times)) return false;
      const int64_t time = relation.edge_time ? relation.edge_time[middle] : sources.time[source];
      time > seed_time ? end = middle : begin = middle + 1;
    }
    const int64_t first = args_.latest && fanout >= 0 ? std::max(range->begin, end - fanout) : range->begin;
    *range = {first, end - first};
    return true;
  }

  void check_row(const SampledRelation& relation, int64_t invalid) const {
    if (invalid < 0) return;
    const auto node = static_cast<int64_t>(tables_[relation.dst_type].nodes()[static_cast<size_t>(invalid)]);
    CHECK_INDEX(false, "row ", node, " of indptr falls, leaves indices or has a source without a time");
  }

  // Only the weights of rows that are sampled are read, so the row that holds the wrong one is known here.
  void refuse_weights(const SampledRelation& relation, EdgeRange row) const {
    for (int64_t i = row.begin; i < row.begin + row.degree; ++i)
      CHECK_VALUE(are_valid(relation.weights, {i, 1}), "edge_weight[", &relation - args_.relations.data(), "] holds ",
                  relation.weights.is_double ? static_cast<const double*>(relation.weights.data)[i]
                                             : static_cast<double>(static_cast<const float*>(relation.weights.data)[i]),
                  " at position ", i, "; expected finite weights of at least 0");
  }

  void pick_edges(const SampledRelation& relation, Frontier frontier, int64_t fanout, uint64_t key,
                  const std::vector<EdgeRange>& rows, const int32_t* offsets, I* columns, I* edges) const {
    const NodeTable<I>& table = tables_[relation.dst_type];
    const InEdges<I> in(relation.in_edges);
    const int64_t edges_per_row = frontier.count == 0 ? 0 : offsets[frontier.count] / frontier.count;
    for_items(frontier.count, 16 * (edges_per_row + 1) * (relation.weights ? 8 : 1), [&](int64_t begin, int64_t end) {
      EdgePicks picks(relation.weights, fanout, args_.replace);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t local = frontier.first + i;
        const auto node = static_cast<uint64_t>(table.nodes()[static_cast<size_t>(local)]);
        const RandomStream random(key, node, static_cast<uint32_t>(table.tree(local)));
        picks.pick(rows[static_cast<size_t>(i)], offsets[i + 1] - offsets[i], random, edges + offsets[i]);
      }
      // In a loop of their own, so that many of these reads are under way at a time.
      for (int32_t e = offsets[begin]; e < offsets[end]; ++e) columns[e] = in.indices[edges[e]];
      if (in.edge_ids != nullptr) {
        for (int32_t e = offsets[begin]; e < offsets[end]; ++e) edges[e] = in.edge_ids[edges[e]];
      }
    });
  }

  Tensor local_ids_of(const SampledRelation& relation, Frontier frontier, const int32_t* offsets, const I* columns,
                      int64_t total) {
    NodeTable<I>& table = tables_[relation.src_type];
    const NodeTable<I>& rows = tables_[relation.dst_type];
    CHECK_VALUE(table.size() + total <= kMostEdges, "a sample may have more than ", kMostEdges,
                " nodes; expected fewer seeds or smaller fanouts");
    table.reserve(total);
    Tensor sources = empty({total}, options_of(ScalarType::Int, DeviceType::CPU));
    auto* out = sources.mutable_data_ptr<int32_t>();
    if (!args_.disjoint) {
      for (int64_t e = 0; e < total; ++e) {
        if (e + kAhead < total) table.prefetch(columns[e + kAhead], 0);
        out[e] = table.local_id(checked(columns[e], table.num_nodes()), 0);
      }
      return sources;
    }
    for (int64_t i = 0; i < frontier.count; ++i) {
      const int32_t tree = rows.tree(frontier.first + i);
      for (int32_t e = offsets[i]; e < offsets[i + 1]; ++e)
        out[e] = table.local_id(checked(columns[e], table.num_nodes()), tree);
    }
    return sources;
  }

  static I checked(I node, int64_t num_nodes) {
    CHECK_INDEX(node >= 0 && static_cast<int64_t>(node) < num_nodes, "indices holds ", node, "; expected ids in [0, ",
                num_nodes, ")");
    return node;
  }

  template <class T>
  static Tensor tensor_of(const std::vector<T>& values) {
    Tensor tensor = empty({static_cast<int64_t>(values.size())},
                          options_of(sizeof(T) == 8 ? ScalarType::Long : ScalarType::Int, DeviceType::CPU));
    std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<T>());
    return tensor;
  }

  const NeighborSampleArgs& args_;
  size_t num_relations_;
  std::vector<NodeTable<I>> tables_;  // of every type
  NeighborSample result_;
};

}  // namespace

NeighborSample neighbor_sample(const NeighborSampleArgs& args) {
  for (const int64_t fanout : args.fanouts)
    CHECK_VALUE(fanout >= -1, "fanouts holds ", fanout, "; expected numbers of neighbours, or -1 for all");
  return args.is_int64 ? Sampler<int64_t>(args).sampled() : Sampler<int32_t>(args).sampled();
}

}  // namespace halfgnn::cpu
