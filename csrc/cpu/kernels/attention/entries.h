// Arithmetic on the entries of a tile, in flat arrays. What is computed up to EdgeTile::padded() is 0 after the last
// entry.
#pragma once

#include "../columns.h"
#include "../convert.h"
#include "../exp.h"
#include "tile.h"

namespace halfgnn::HALFGNN_ISA {

template <class Acc>
HALFGNN_NOINLINE void clear_padding(const EdgeTile& tile, Acc* values) {
  for (int64_t i = tile.entries(); i < tile.padded(); ++i) values[i] = 0;
}
template <class Acc>
HALFGNN_NOINLINE void exp_entries(Acc* values, int64_t n) {
  exp_values(values, n);
}
template <class Acc>
HALFGNN_NOINLINE void multiply_entries(int64_t n, const Acc* __restrict x, Acc* __restrict values) {
  for (int64_t i = 0; i < n; ++i) values[i] *= x[i];
}
template <class Acc>
HALFGNN_NOINLINE void scale_entries(int64_t n, Acc scale, Acc* values) {
  for (int64_t i = 0; i < n; ++i) values[i] *= scale;
}

// Row `row` of a node's or an edge's values, one per head.
template <class Acc>
HALFGNN_NOINLINE void decode_heads(const Operand& operand, int64_t row, Acc* out) {
  decode(operand, row, out);
}
template <class Acc>
HALFGNN_NOINLINE void encode_heads(const Acc* values, int64_t heads, DType type, void* out, int64_t row) {
  encode(values, heads, type, out, row);
}

// values += those of the tile's edges, one per head, from edge data of `type`
template <class Acc>
HALFGNN_NOINLINE void add_edge_values(const void* edge_values, DType type, const EdgeTile& tile, Acc* values) {
  with_type(type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    const T* data = static_cast<const T*>(edge_values);
    with_columns(tile.heads, [&](auto columns) {
      const int64_t n = columns.count();
      for (int64_t e = 0; e < tile.num_edges(); ++e) {
        prefetch_edge(data, tile.edge_id(e + kNextTile), n * static_cast<int64_t>(sizeof(T)));
        const T* own = data + tile.edge_id(e) * n;
        for (int64_t h = 0; h < n; ++h) values[e * n + h] += static_cast<Acc>(to_float(own[h]));
      }
    });
  });
}
// Stores values of the tile's edges, one per head and rounded, in edge data of `type`.
template <class Acc>
HALFGNN_NOINLINE void store_edge_values(const EdgeTile& tile, const Acc* values, DType type, void* out) {
  const auto store = [&](auto t, auto columns) {
    using T = TypeOf<decltype(t)>;
    constexpr int kColumns = decltype(columns)::kCount;
    constexpr bool kFlat = sizeof(Acc) == 4 && kColumns > 0 && kLanes % (kColumns ? kColumns : 1) == 0;
    constexpr int64_t kEdges = kFlat ? kLanes / (kColumns ? kColumns : 1) : 1;  // that are rounded together
    const int64_t n = columns.count(), bytes = n * static_cast<int64_t>(sizeof(T));
    T* data = static_cast<T*>(out);
    for (int64_t e = 0; e < tile.num_edges(); e += kEdges) {
      [[maybe_unused]] T rounded[kLanes];
      if constexpr (kFlat) store_vector(load_vector(values + e * n), rounded);
      for (int64_t k = 0; k < kEdges && e + k < tile.num_edges(); ++k) {
        prefetch_edge_for_write(data, tile.edge_id(e + k + kNextTile), bytes);
        T* own = data + tile.edge_id(e + k) * n;
        if constexpr (kFlat) {
          memcpy(own, rounded + k * n, static_cast<size_t>(bytes));
        } else {
          encode_row(values + e * n, n, own);
        }
      }
    }
  };
  with_type(type, [&](auto t) {
    if constexpr ((sizeof(TypeOf<decltype(t)>) == 8) == (sizeof(Acc) == 8))
      with_columns(tile.heads, [&](auto columns) { store(t, columns); });
  });
}

// sum[head] += values of the edges [first, last), which are all or some of a row's. The sum begins where the row
// begins.
template <class Acc>
HALFGNN_NOINLINE void add_entries(const EdgeTile& tile, int64_t first, int64_t last, const Acc* values, double* sum) {
  with_columns(tile.heads, [&](auto columns) {
    const int64_t n = columns.count();
    if (tile.starts)
      for (int64_t h = 0; h < n; ++h) sum[h] = 0;
    for (int64_t e = first; e < last; ++e)
      for (int64_t h = 0; h < n; ++h) sum[h] += values[e * n + h];
  });
}

}  // namespace halfgnn::HALFGNN_ISA
