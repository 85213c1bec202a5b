// The graph and the operands of the cases (cases.h).
//
// Everything is made from integers by a generator of its own: every library and every machine has the same calls.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "../../csrc/core/broadcast.h"
#include "../../csrc/cpu/kernels/choose.h"

namespace halfgnn {
namespace {

constexpr int64_t kNodes = 250;

// splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
class Random {
 public:
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  // Small ids far more often than large ones: a few hubs, and nodes without edges.
  int64_t skewed(int64_t n) {
    int64_t least = n;
    for (int i = 0; i < 12; ++i) least = std::min(least, below(n));
    return least;
  }

 private:
  uint64_t state_ = 20;
};

// What a case writes.
struct Result {
  enum Kind { kValues, kResidual, kIds };  // a residual is what rounding lost of the result before it
  const void* data;
  DType type;
  int64_t n;
  Kind kind;
};

// What the cases read and write, kept until the end.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* bytes(int64_t n) {
    constexpr size_t kLine = 64;
    void* data = std::aligned_alloc(kLine, (static_cast<size_t>(n) / kLine + 1) * kLine);
    if (!data) throw std::bad_alloc();
    kept_.emplace_back(data);
    return data;
  }
  void* empty(DType type, int64_t n, Result::Kind kind = Result::kValues) {
    void* data = bytes(n * size_of(type));
    results.push_back({data, type, n, kind});
    return data;
  }
  // Of either sign, 1/4 to 2 in magnitude, times 2^scale.
  void* values(DType type, int64_t n, int scale = 0) {
    void* data = bytes(n * size_of(type));
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t bits = random.next();
      const uint32_t sign = bits & 1, exponent = static_cast<uint32_t>(bits >> 8) % 3 + static_cast<uint32_t>(scale),
                     mantissa = bits >> 40;
      if (type == DType::kHalf)
        static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(sign << 15 | (13 + exponent) << 10 | mantissa >> 14);
      else if (type == DType::kBFloat16)
        static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(sign << 15 | (125 + exponent) << 7 | mantissa >> 17);
      else
        static_cast<uint32_t*>(data)[i] = sign << 31 | (125 + exponent) << 23 | mantissa >> 1;
    }
    return data;
  }
  // The same without signs.
  void* magnitudes(DType type, int64_t n) {
    char* data = static_cast<char*>(values(type, n));
    for (int64_t i = 1; i <= n; ++i) data[i * size_of(type) - 1] &= 0x7f;
    return data;
  }
  template <class I>
  void* ids(const std::vector<int64_t>& values) {
    I* data = static_cast<I*>(bytes(static_cast<int64_t>(values.size() * sizeof(I))));
    for (size_t i = 0; i < values.size(); ++i) data[i] = static_cast<I>(values[i]);
    return data;
  }
  Random random;
  std::vector<Result> results;

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::vector<std::unique_ptr<void, Free>> kept_;
};

// ---- the graph ---------------------------------------------------------------------------------------------------

struct Edges {
  std::vector<int64_t> src, dst;
};

template <class I>
Topology compressed(Memory& memory, const std::vector<int64_t>& rows, const std::vector<int64_t>& cols) {
  std::vector<int64_t> indptr(kNodes + 1), indices, edge_ids;
  for (int64_t row = 0; row < kNodes; ++row) {
    for (size_t e = 0; e < rows.size(); ++e) {
      if (rows[e] != row) continue;
      indices.push_back(cols[e]);
      edge_ids.push_back(static_cast<int64_t>(e));
    }
    indptr[static_cast<size_t>(row) + 1] = static_cast<int64_t>(indices.size());
  }
  Topology topology;
  topology.indptr = memory.ids<I>(indptr);
  topology.indices = memory.ids<I>(indices);
  topology.edge_ids = memory.ids<I>(edge_ids);
  topology.num_rows = kNodes;
  topology.num_edges = static_cast<int64_t>(rows.size());
  topology.is_int64 = sizeof(I) == 8;
  return topology;
}

struct Graph {
  Topology csc, csr;
  int64_t num_edges = 0;

  Graph(Memory& memory, const Edges& edges, bool is_int64) : num_edges(static_cast<int64_t>(edges.src.size())) {
    csc = is_int64 ? compressed<int64_t>(memory, edges.dst, edges.src)
                   : compressed<int32_t>(memory, edges.dst, edges.src);
    csr = is_int64 ? compressed<int64_t>(memory, edges.src, edges.dst)
                   : compressed<int32_t>(memory, edges.src, edges.dst);
  }
};

// ---- cases -------------------------------------------------------------------------------------------------------

struct Size {
  DType type = DType::kFloat;
  int64_t heads = 1, dim = 128;
  int64_t len() const { return heads * dim; }
};

struct Context {
  Memory& memory;
  const Graph& graph;
  const KernelTable& kernels;
  Size shape;

  void* nodes() const { return memory.values(shape.type, kNodes * shape.len()); }
  void* new_nodes() const { return memory.empty(shape.type, kNodes * shape.len()); }
  void* edges() const { return memory.values(shape.type, graph.num_edges * shape.heads); }
  void* new_edges() const { return memory.empty(shape.type, graph.num_edges * shape.heads); }
  void* edge_rows() const { return memory.values(shape.type, graph.num_edges * shape.len()); }
  void* new_edge_rows() const { return memory.empty(shape.type, graph.num_edges * shape.len()); }
  void* per_head() const { return memory.values(shape.type, kNodes * shape.heads); }
  void* accumulators(int64_t n) const { return memory.empty(DType::kFloat, n); }
  // As for training: with what rounding lost, in halves.
  Precise precise() const {
    void* value = new_nodes();
    if (shape.type == DType::kFloat) return {value, nullptr};
    return {value, memory.empty(shape.type, kNodes * shape.len(), Result::kResidual)};
  }
};

// For fp32 rows of nodes beside edges of the case's type.
Context with_fp32(const Context& c) {
  return {c.memory, c.graph, c.kernels, {DType::kFloat, c.shape.heads, c.shape.dim}};
}

using Call = std::function<void()>;
using Prepare = Call (*)(const Context&);

}  // namespace
}  // namespace halfgnn
