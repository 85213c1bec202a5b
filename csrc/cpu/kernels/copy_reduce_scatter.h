// The gradients of maxima and minima, from the nodes that were reduced into: each element is added to the source of its
// winner. copy_reduce_gradient.h reads winners and gradients for every edge; here they are read once per node.
//
// Columns are taken kWinnerColumns at a time, so that the sums of a column slice stay in the cache. Sums are fp64, and
// the nodes of a source are added in their order, whatever part of the sources a call is for.
#pragma once

#include "copy_reduce_gradient.h"

namespace halfgnn::HALFGNN_ISA {

// f(gradients, winners, place of their sources in memory) for the maximum, the minimum or both.
template <class F>
HALFGNN_INLINE void each_extreme(const WinnerColumns& columns, F f) {
  const CopyReduceBackwardArgs& args = columns.args;
  uint32_t* sources = columns.sources;
  if (args.max) {
    f(args.max, args.arg_max, sources);
    sources += columns.slices() * args.num_nodes * kWinnerColumns;
  }
  if (args.min) f(args.min, args.arg_min, sources);
}

// found[i] = the source of that edge of the `count` ones from `begin` on whose id is winners[i]: N vectors of both.
template <int N>
HALFGNN_NOINLINE void find_winners(const Ids& sources, int64_t begin, int64_t count, const uint32_t* edge_ids,
                                   const uint32_t* winners, uint32_t* found) {
  Words won[N], source[N];
  HALFGNN_UNROLL_BLOCKS
  for (int i = 0; i < N; ++i) {
    won[i] = load_unaligned<Words>(winners + kLanes * i);
    source[i] = load_unaligned<Words>(found + kLanes * i);
  }
  sources.resolve([&](const auto* ids) {
    for (int64_t k = 0; k < count; ++k) {
      const Words edge = splat_bits(edge_ids[k]), id = splat_bits(static_cast<uint32_t>(ids[begin + k]));
      HALFGNN_UNROLL_BLOCKS
      for (int i = 0; i < N; ++i) source[i] = choose_lanes(equal(won[i], edge), id, source[i]);
    }
  });
  HALFGNN_UNROLL_BLOCKS
  for (int i = 0; i < N; ++i) memcpy(found + kLanes * i, &source[i], sizeof(source[i]));
}

// The sources of a node's winners. Winners that are no edge of the node have none.
class WinnerSources {
 public:
  WinnerSources(const Adjacency& in_edges, int64_t columns)
      : adj_(in_edges), columns_(columns), wanted_(padded()), found_(padded()) {
    for (int64_t i = 0; i < padded(); ++i) wanted_[i] = kNoSource;
  }
  const uint32_t* find(int64_t node, const int32_t* winners) {
    const int64_t begin = adj_.indptr[node], end = adj_.indptr[node + 1];
    for (int64_t i = 0; i < padded(); ++i) found_[i] = kNoSource;
    if (adj_.edge_ids) {
      search(begin, end, winners);
    } else {
      adj_.indices.resolve([&](const auto* ids) {
        for (int64_t i = 0; i < columns_; ++i)
          if (winners[i] >= begin && winners[i] < end) found_[i] = static_cast<uint32_t>(ids[winners[i]]);
      });
    }
    return found_;
  }

 private:
  static constexpr int N = 4, kFew = kWinnerColumns / kLanes;  // vectors whose edges are looked for at the same time

  int64_t padded() const { return (columns_ + N * kLanes - 1) / (N * kLanes) * (N * kLanes); }
  // An edge is not stored at the place of its id: all of the node's are compared.
  void search(int64_t begin, int64_t end, const int32_t* winners) {
    uint32_t buffer[kRun];
    memcpy(wanted_, winners, static_cast<size_t>(columns_) * sizeof(uint32_t));
    for (int64_t p = begin; p < end; p += kRun) {
      const int64_t count = end - p < kRun ? end - p : kRun;
      const uint32_t* ids = short_ids(adj_, p, count, buffer);
      int64_t i = 0;
      for (; i + kWinnerColumns < columns_; i += N * kLanes)
        find_winners<N>(adj_.indices, p, count, ids, wanted_ + i, found_ + i);
      if (i < columns_) find_winners<kFew>(adj_.indices, p, count, ids, wanted_ + i, found_ + i);
    }
  }

  const Adjacency adj_;
  const int64_t columns_;
  Buffer<uint32_t> wanted_, found_;
};

static void copy_reduce_winners(const WinnerColumns& columns, int64_t node_begin, int64_t node_end) {
  constexpr int64_t kAhead = 2;
  const int64_t dim = columns.args.dim, num_nodes = columns.args.num_nodes;
  WinnerSources find(Adjacency(columns.args.in_edges), columns.count);
  each_extreme(columns, [&](const void*, const int32_t* arg, uint32_t* sources) {
    for (int64_t v = node_begin; v < node_end; ++v) {
      const int32_t* winners = arg + v * dim + columns.first;
      if (v + kAhead < node_end) prefetch_row(winners + kAhead * dim, columns.count);
      const uint32_t* found = find.find(v, winners);
      for (int64_t i = 0; i < columns.count; i += kWinnerColumns)
        memcpy(sources + i * num_nodes + v * kWinnerColumns, found + i, kWinnerColumns * sizeof(uint32_t));
    }
  });
}

// Adds `count` columns of gradients, those from `grad` on, to the sums of `rows` sources from `first` on.
template <class G>
HALFGNN_NOINLINE void add_at_winners(const G* grad, int64_t num_nodes, int64_t dim, int64_t count,
                                     const uint32_t* sources, uint32_t first, uint32_t rows, double* sums) {
  constexpr int64_t kAhead = 8;
  float values[kWinnerColumns] = {};
  for (int64_t v = 0; v < num_nodes; ++v, grad += dim, sources += kWinnerColumns) {
    if (v + kAhead < num_nodes) __builtin_prefetch(grad + kAhead * dim);
    if (count == kWinnerColumns) {
      decode_row(grad, kWinnerColumns, values);
    } else {
      decode_row(grad, count, values);
    }
    for (int64_t i = 0; i < kWinnerColumns; ++i) {
      const uint32_t row = sources[i] - first;
      // Those of other sources and of none go to a row past the last one, which costs less than a branch.
      sums[int64_t{row < rows ? row : rows} * kWinnerColumns + i] += static_cast<double>(values[i]);
    }
  }
}

static void copy_reduce_scatter(const WinnerColumns& columns, int64_t slice, int64_t row_begin, int64_t row_end,
                                double* sums) {
  const CopyReduceBackwardArgs& args = columns.args;
  const int64_t skipped = slice * kWinnerColumns, left = columns.count - skipped, first = columns.first + skipped;
  const int64_t count = left < kWinnerColumns ? left : kWinnerColumns, rows = row_end - row_begin;
  for (int64_t i = 0; i < (rows + 1) * kWinnerColumns; ++i) sums[i] = 0;
  each_extreme(columns, [&](const void* grad, const int32_t*, const uint32_t* sources) {
    with_vector_type(args.grad_type, [&](auto g) {
      add_at_winners(static_cast<const TypeOf<decltype(g)>*>(grad) + first, args.num_nodes, args.dim, count,
                     sources + skipped * args.num_nodes, static_cast<uint32_t>(row_begin), static_cast<uint32_t>(rows),
                     sums);
    });
  });
  with_vector_type(columns.type, [&](auto t) {
    auto* out = static_cast<TypeOf<decltype(t)>*>(columns.out) + first;
    float values[kWinnerColumns];
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < kWinnerColumns; ++i) values[i] = static_cast<float>(sums[row * kWinnerColumns + i]);
      encode_row(values, count, out + (row_begin + row) * args.dim);
    }
  });
}

}  // namespace halfgnn::HALFGNN_ISA
