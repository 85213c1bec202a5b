// The rows of a compressed adjacency with its index type resolved, and what is prefetched for the edges to come.
#pragma once

#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

// How many edges ahead a row is prefetched. Of longer rows than the limit, the hardware fetches the rest by itself.
constexpr int64_t kPrefetchEdges = 12;
constexpr int64_t kPrefetchBytes = 512;

template <class F>
inline void with_index(bool is_int64, F f) {
  if (is_int64) return f(Type<int64_t>{});
  return f(Type<int32_t>{});
}

template <class I>
struct Adjacency {
  const I* indptr;
  const I* indices;
  const I* edge_ids;
  int64_t num_edges;
  explicit Adjacency(const Topology& t)
      : indptr(static_cast<const I*>(t.indptr)),
        indices(static_cast<const I*>(t.indices)),
        edge_ids(static_cast<const I*>(t.edge_ids)),
        num_edges(t.num_edges) {}
  HALFGNN_INLINE int64_t edge_id(int64_t position) const {
    return edge_ids ? static_cast<int64_t>(edge_ids[position]) : position;
  }
  HALFGNN_INLINE int64_t column(int64_t position) const {
    return indices ? static_cast<int64_t>(indices[position]) : 0;
  }
  // Whether there is such a position: what lies ahead is prefetched only if it exists.
  HALFGNN_INLINE bool has(int64_t position) const { return position < num_edges; }
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
template <class Acc, class I>
struct InverseDegrees {
  const I* indptr;
  explicit InverseDegrees(const void* mean_indptr) : indptr(static_cast<const I*>(mean_indptr)) {}
  explicit operator bool() const { return indptr != nullptr; }
  HALFGNN_INLINE Acc operator[](int64_t node) const {
    const I degree = indptr[node + 1] - indptr[node];
    return degree > 1 ? Acc{1} / static_cast<Acc>(degree) : Acc{1};
  }
};

// The weights of one edge, one per head, times the scale of its column. Either may be absent.
template <class W, class I>
HALFGNN_INLINE void load_weights(const W* weight, const InverseDegrees<float, I>& scale, int64_t edge, int64_t col,
                                 int64_t heads, float* out) {
  const float s = scale ? scale[col] : 1.f;
  for (int64_t h = 0; h < heads; ++h) out[h] = weight ? s * to_float(weight[edge * heads + h]) : s;
}

}  // namespace halfgnn::HALFGNN_ISA
