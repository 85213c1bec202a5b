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

// values += those of the tile's edges, one per head; row: workspace for one edge
template <class Acc>
HALFGNN_NOINLINE void add_edge_values(const Operand& edge_values, const EdgeTile& tile, Acc* row, Acc* values) {
  const int64_t heads = edge_values.len, bytes = heads * size_of(edge_values.type);
  for (int64_t e = 0; e < tile.num_edges(); ++e) {
    if (tile.has(e + kPrefetchEdges)) prefetch_edge(edge_values.data, tile.edge_id(e + kPrefetchEdges), bytes);
    decode(edge_values, tile.edge_id(e), row);
    for (int64_t h = 0; h < heads; ++h) values[e * heads + h] += row[h];
  }
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
