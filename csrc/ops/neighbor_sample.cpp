// neighbor_sample: checks. CPU only.

#ifdef HALFGNN_CPU_KEY

#include "../cpu/neighbor_sample.h"

#include <algorithm>
#include <limits>

#include "checks.h"
#include "register.h"

namespace halfgnn {
namespace {

using Tensors = TensorList;
using OptionalTensors = OptionalTensorList;

std::string numbered(const char* name, size_t i) { return std::string(name) + "[" + std::to_string(i) + "]"; }

template <class List>
void check_length(const List& list, const char* name, size_t expected, const char* what) {
  CHECK_VALUE(list.size() == expected, name, " has ", list.size(), " entries; expected ", expected, ", ", what);
}

void check_vector(const Tensor& tensor, const std::string& name, ScalarType type) {
  CHECK_VALUE(tensor.device().is_cpu(), name, " is on ", tensor.device(), "; expected the CPU");
  CHECK_TYPE(tensor.scalar_type() == type, name, " has dtype ", dtype_name(tensor.scalar_type()), "; expected ",
             dtype_name(type));
  CHECK_VALUE(tensor.dim() == 1 && tensor.is_contiguous(), name, " has shape ", tensor.sizes(), " and strides ",
              tensor.strides(), "; expected one dimension, contiguous");
}

// One entry per edge of a relation, or none.
const Tensor* of_edges(const OptionalTensor& tensor, const std::string& name, int64_t num_edges) {
  if (!tensor || !tensor->defined()) return nullptr;
  check_vector(*tensor, name, tensor->scalar_type());
  CHECK_VALUE(tensor->size(0) == num_edges, name, " has shape ", tensor->sizes(), "; expected (", num_edges,
              ",), one per edge");
  return &*tensor;
}

const int64_t* times_of(const Tensor* tensor, const std::string& name) {
  if (tensor == nullptr) return nullptr;
  check_vector(*tensor, name, ScalarType::Long);
  return tensor->const_data_ptr<int64_t>();
}

cpu::EdgeWeights weights_of(const Tensor* tensor, const std::string& name) {
  if (tensor == nullptr) return {};
  const auto type = tensor->scalar_type();
  CHECK_TYPE(type == ScalarType::Float || type == ScalarType::Double, name, " has dtype ", dtype_name(type),
             "; expected torch.float32 or torch.float64");
  return {tensor->const_data_ptr(), type == ScalarType::Double};
}

size_t type_at(IntArrayRef types, const char* name, size_t relation, size_t num_types) {
  const int64_t type = types[relation];
  CHECK_VALUE(type >= 0 && type < static_cast<int64_t>(num_types), numbered(name, relation), " is ", type,
              "; expected a number in [0, ", num_types, ")");
  return static_cast<size_t>(type);
}

// Nodes of a type are the rows of the relations that lead to it.
int64_t num_nodes_of(const std::vector<cpu::SampledRelation>& relations, size_t type) {
  int64_t num_nodes = std::numeric_limits<int64_t>::max();
  for (const cpu::SampledRelation& relation : relations)
    if (relation.dst_type == type) num_nodes = std::min(num_nodes, relation.in_edges.num_rows);
  return num_nodes;
}

template <class I>
void check_seeds(const Tensor& seeds, const std::string& name, int64_t num_nodes) {
  const I* ids = seeds.const_data_ptr<I>();
  for (int64_t i = 0; i < seeds.numel(); ++i)
    CHECK_INDEX(ids[i] >= 0 && static_cast<int64_t>(ids[i]) < num_nodes, name, " holds ", ids[i],
                "; expected ids in [0, ", num_nodes, ")");
}

Tensor counts_of(const std::vector<int64_t>& counts, size_t num_types) {
  const auto columns = static_cast<int64_t>(num_types);
  Tensor result =
      empty({static_cast<int64_t>(counts.size()) / columns, columns}, options_of(ScalarType::Long, DeviceType::CPU));
  std::copy(counts.begin(), counts.end(), result.mutable_data_ptr<int64_t>());
  return result;
}

std::vector<cpu::SampledRelation> relations_of(const Tensors& indptr, const Tensors& indices,
                                               const OptionalTensors& edge_ids, IntArrayRef src_types,
                                               IntArrayRef dst_types, size_t num_types, ScalarType idtype) {
  check_length(indices, "indices", indptr.size(), "one per relation");
  check_length(edge_ids, "edge_ids", indptr.size(), "one per relation");
  check_length(src_types, "src_types", indptr.size(), "one per relation");
  check_length(dst_types, "dst_types", indptr.size(), "one per relation");
  std::vector<cpu::SampledRelation> relations(indptr.size());
  for (size_t r = 0; r < relations.size(); ++r) {
    relations[r].in_edges = topology_of(indptr[r], indices[r], edge_ids.get(r), indices[r].numel());
    CHECK_TYPE(indptr[r].scalar_type() == idtype, numbered("indptr", r), " has dtype ",
               dtype_name(indptr[r].scalar_type()), "; expected that of seeds[0], ", dtype_name(idtype));
    relations[r].src_type = type_at(src_types, "src_types", r, num_types);
    relations[r].dst_type = type_at(dst_types, "dst_types", r, num_types);
  }
  return relations;
}

void add_edge_data(std::vector<cpu::SampledRelation>& relations, const OptionalTensors& edge_weight,
                   const OptionalTensors& edge_time) {
  check_length(edge_weight, "edge_weight", relations.size(), "one per relation");
  check_length(edge_time, "edge_time", relations.size(), "one per relation");
  for (size_t r = 0; r < relations.size(); ++r) {
    const int64_t num_edges = relations[r].in_edges.num_edges;
    const std::string weight_name = numbered("edge_weight", r), time_name = numbered("edge_time", r);
    const OptionalTensor weights = edge_weight.get(r), times = edge_time.get(r);
    relations[r].weights = weights_of(of_edges(weights, weight_name, num_edges), weight_name);
    relations[r].edge_time = times_of(of_edges(times, time_name, num_edges), time_name);
  }
}

std::vector<cpu::SampledNodes> types_of(const std::vector<cpu::SampledRelation>& relations, const Tensors& seeds,
                                        const OptionalTensors& node_time) {
  check_length(node_time, "node_time", seeds.size(), "one per type of nodes");
  std::vector<cpu::SampledNodes> types;
  for (size_t type = 0; type < seeds.size(); ++type) {
    const std::string name = numbered("seeds", type);
    const int64_t num_nodes = num_nodes_of(relations, type);
    check_vector(seeds[type], name, seeds[0].scalar_type());
    seeds[0].scalar_type() == ScalarType::Long ? check_seeds<int64_t>(seeds[type], name, num_nodes)
                                               : check_seeds<int32_t>(seeds[type], name, num_nodes);
    const OptionalTensor times = node_time.get(type);
    const int64_t* data = times ? times_of(&*times, numbered("node_time", type)) : nullptr;
    types.push_back({seeds[type].const_data_ptr(), seeds[type].numel(), num_nodes, data, data ? times->numel() : 0});
  }
  return types;
}

bool has_times(const cpu::NeighborSampleArgs& args) {
  return std::any_of(args.types.begin(), args.types.end(), [](const auto& type) { return type.time != nullptr; }) ||
         std::any_of(args.relations.begin(), args.relations.end(),
                     [](const auto& r) { return r.edge_time != nullptr; });
}

// The times of the trees, one per seed.
const int64_t* seed_times_of(const cpu::NeighborSampleArgs& args, const OptionalTensor& seed_time) {
  int64_t num_trees = 0;
  for (const cpu::SampledNodes& nodes : args.types) num_trees += nodes.num_seeds;
  CHECK_VALUE(num_trees <= std::numeric_limits<int32_t>::max(), "seeds has ", num_trees,
              " nodes; expected fewer than 2**31");
  if (!has_times(args)) return nullptr;
  CHECK_VALUE(args.disjoint && seed_time, "disjoint is ", args.disjoint ? "True" : "False", " and seed_time is ",
              seed_time ? "given" : "None", "; times of nodes or edges need disjoint trees and a time per seed");
  check_vector(*seed_time, "seed_time", ScalarType::Long);
  CHECK_VALUE(seed_time->size(0) == num_trees, "seed_time has shape ", seed_time->sizes(), "; expected (", num_trees,
              ",), one per seed");
  return seed_time->const_data_ptr<int64_t>();
}

std::tuple<Tensors, Tensors, Tensors, Tensors, Tensors, Tensor> neighbor_sample(
    const Tensors& indptr, const Tensors& indices, const OptionalTensors& edge_ids, IntArrayRef src_types,
    IntArrayRef dst_types, const Tensors& seeds, IntArrayRef fanouts, int64_t seed, bool replace, bool blocks,
    bool disjoint, const OptionalTensors& edge_weight, const OptionalTensors& node_time,
    const OptionalTensors& edge_time, const OptionalTensor& seed_time, bool latest) {
  CHECK_VALUE(!seeds.empty(), "seeds is empty; expected at least one type of nodes");
  CHECK_VALUE(indptr.empty() ? fanouts.empty() : fanouts.size() % indptr.size() == 0, "fanouts has ", fanouts.size(),
              " entries; expected one per hop and relation, of which there are ", indptr.size());
  const ScalarType idtype = seeds[0].scalar_type();
  CHECK_TYPE(idtype == ScalarType::Int || idtype == ScalarType::Long, "seeds[0] has dtype ", dtype_name(idtype),
             "; expected torch.int32 or torch.int64");
  cpu::NeighborSampleArgs args;
  args.relations = relations_of(indptr, indices, edge_ids, src_types, dst_types, seeds.size(), idtype);
  add_edge_data(args.relations, edge_weight, edge_time);
  args.types = types_of(args.relations, seeds, node_time);
  args.fanouts.assign(fanouts.begin(), fanouts.end());
  args.seed = static_cast<uint64_t>(seed);
  args.is_int64 = idtype == ScalarType::Long;
  args.replace = replace;
  args.blocks = blocks;
  args.disjoint = disjoint;
  args.latest = latest;
  args.seed_time = seed_times_of(args, seed_time);
  cpu::NeighborSample sample = cpu::neighbor_sample(args);
  CHECK_VALUE(!blocks || sample.repeated_seeds == 0, "seeds holds ", sample.repeated_seeds,
              " nodes more than once; the destinations of a block are different nodes");
  return {std::move(sample.nodes),   std::move(sample.trees), std::move(sample.offsets),
          std::move(sample.sources), std::move(sample.edges), counts_of(sample.num_nodes, seeds.size())};
}

}  // namespace

void register_neighbor_sample(Library& m) { m.impl<&neighbor_sample>("neighbor_sample"); }

}  // namespace halfgnn

#endif
