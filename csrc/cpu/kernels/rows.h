// The rows of a compressed adjacency, and what is prefetched for the edges to come.
#pragma once

#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

// How many edges ahead a row is prefetched. Of longer rows than the limit, the hardware fetches the rest by itself.
constexpr int64_t kPrefetchEdges = 12;
constexpr int64_t kPrefetchBytes = 512;

// Ids, or offsets, of a topology's type, of which no kernel is a template: the code of all of them would be compiled
// twice. False if there are none.
template <class F>
inline void with_index(bool is_int64, F f) {
  if (is_int64) return f(Type<int64_t>{});
  return f(Type<int32_t>{});
}
class Ids {
 public:
  Ids(const void* ids, bool is_int64) : ids_(ids), is_int64_(is_int64) {}
  explicit operator bool() const { return ids_ != nullptr; }
  HALFGNN_INLINE int64_t operator[](int64_t i) const {
    return is_int64_ ? static_cast<const int64_t*>(ids_)[i] : static_cast<const int32_t*>(ids_)[i];
  }
  // Where they are, if I is their type.
  template <class I>
  HALFGNN_INLINE const I* as() const {
    return static_cast<const I*>(ids_);
  }
  // f(where they are), for a short loop over edges, which would ask for their type again and again.
  template <class F>
  HALFGNN_INLINE void resolve(F f) const {
    with_index(is_int64_, [&](auto i) { f(as<TypeOf<decltype(i)>>()); });
  }

 private:
  const void* ids_;
  bool is_int64_;
};

struct Adjacency {
  Ids indptr, indices, edge_ids;
  bool is_int64;
  int64_t num_edges;
  explicit Adjacency(const Topology& t)
      : indptr(t.indptr, t.is_int64),
        indices(t.indices, t.is_int64),
        edge_ids(t.edge_ids, t.is_int64),
        is_int64(t.is_int64),
        num_edges(t.num_edges) {}
  HALFGNN_INLINE int64_t edge_id(int64_t position) const { return edge_ids ? edge_ids[position] : position; }
  HALFGNN_INLINE int64_t column(int64_t position) const { return indices ? indices[position] : 0; }
  // Whether there is such a position: what lies ahead is prefetched only if it exists.
  HALFGNN_INLINE bool has(int64_t position) const { return position < num_edges; }
};

// The columns and ids of consecutive edges, for kernels that ask for them one by one.
class EdgeIds {
 public:
  explicit EdgeIds(const Adjacency& adj) : adj_(adj) {}
  // To be called before an edge is asked for. Calls go on from edge to edge.
  HALFGNN_INLINE void hold(int64_t position) {
    if (position >= end_) fill(position);
  }
  HALFGNN_INLINE int64_t column(int64_t position) const { return columns_[position - begin_]; }
  HALFGNN_INLINE int64_t edge_id(int64_t position) const { return edges_[position - begin_]; }
  // Whether kPrefetchEdges later there is another edge, which is then known too.
  HALFGNN_INLINE bool has_ahead(int64_t position) const { return adj_.has(position + kPrefetchEdges); }

 private:
  static constexpr int64_t kEdges = 64;
  HALFGNN_NOINLINE void fill(int64_t begin) {
    begin_ = begin;
    end_ = begin + kEdges;
    const int64_t left = adj_.num_edges - begin, most = kEdges + kPrefetchEdges, n = left < most ? left : most;
    adj_.indices.resolve([&](const auto* ids) {
      for (int64_t k = 0; k < n; ++k) columns_[k] = ids ? ids[begin + k] : 0;
    });
    adj_.edge_ids.resolve([&](const auto* ids) {
      for (int64_t k = 0; k < n; ++k) edges_[k] = ids ? ids[begin + k] : begin + k;
    });
  }

  const Adjacency adj_;
  int64_t begin_ = 0, end_ = 0;
  int64_t columns_[kEdges + kPrefetchEdges], edges_[kEdges + kPrefetchEdges];
};

// A few elements per edge, reached through edge_ids in any order: the line that they start in.
HALFGNN_INLINE void prefetch_edge(const void* data, int64_t edge, int64_t bytes) {
  __builtin_prefetch(static_cast<const char*>(data) + edge * bytes);
}
HALFGNN_INLINE void prefetch_edge_for_write(void* data, int64_t edge, int64_t bytes) {
  __builtin_prefetch(static_cast<char*>(data) + edge * bytes, 1);
}

template <class T>
HALFGNN_INLINE void prefetch_row(const T* row, int64_t n) {
  const char* p = reinterpret_cast<const char*>(row);
  const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
  const int64_t end = bytes < kPrefetchBytes ? bytes : kPrefetchBytes;
  int64_t i = 0;
  for (; i + 256 <= end; i += 256)
    for (int64_t line = 0; line < 256; line += 64) __builtin_prefetch(p + i + line);
  for (; i < end; i += 64) __builtin_prefetch(p + i);
  __builtin_prefetch(p + end - 1);
}

// The factors of the gradient of a mean, by node: 1 / its number of edges in an indptr, 1 for a node without edges.
// False if there is no indptr.
template <class Acc, class Indptr>
HALFGNN_INLINE Acc inverse_degree(const Indptr& indptr, int64_t node) {
  const int64_t degree = indptr[node + 1] - indptr[node];
  return degree > 1 ? Acc{1} / static_cast<Acc>(degree) : Acc{1};
}
template <class Acc>
struct InverseDegrees {
  Ids indptr;
  InverseDegrees(const void* mean_indptr, const Topology& topology) : indptr(mean_indptr, topology.is_int64) {}
  explicit operator bool() const { return static_cast<bool>(indptr); }
  HALFGNN_INLINE Acc operator[](int64_t node) const { return inverse_degree<Acc>(indptr, node); }
};

}  // namespace halfgnn::HALFGNN_ISA
