// SpMM: sums of rows, weighted or plain (vector kernel, and one for rows of fewer than 8 values), and any operator and
// reduction (general).
#pragma once

#include "blocks.h"
#include "buffer.h"
#include "kernels.h"
#include "message.h"
#include "row_tiles.h"
#include "rows.h"
#include "running_sum.h"

namespace halfgnn::HALFGNN_ISA {

// ---- sums of rows of at least 8 elements per head

template <class B, class W, class I>
void spmm_sum_rows(const SpmmSumArgs& args, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  const Adjacency<I> adj(args.topology);
  const Blocks<B> blocks(args.heads, args.dim);
  const RowTiles<B> tiles(blocks);
  EdgeWindow<T, W, I> edges(adj, static_cast<const T*>(args.feat), blocks.len(), args.feat_by_edge,
                            static_cast<const W*>(args.weight), InverseDegrees<float, I>(args.mean_indptr), args.heads);
  RunningSum<float> sums(blocks.workspace());

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    float* run = begin < end ? sums.start_runs() : sums.start();
    for (int64_t p = begin; p < end; p += kRun) {
      if (p > begin) sums.fold();
      const int64_t count = end - p < kRun ? end - p : kRun;
      edges.hold(p, count);
      tiles.sum(edges.rows(p), count, edges.weights(p), run);
    }
    const float factor =
        args.divide_by_degree && end > begin ? args.factor / static_cast<float>(end - begin) : args.factor;
    store_row(blocks, sums.finish(), factor, args.out_type, args.out, row);
  }
}

// ---- sums of rows of N < 8 elements in all: the sum stays in registers, in fp64 (see RunningSum)

template <int N, class T, class W, class I>
void spmm_narrow_rows(const SpmmSumArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  const T* feat = static_cast<const T*>(args.feat);
  const W* weight = static_cast<const W*>(args.weight);
  const InverseDegrees<float, I> scales(args.mean_indptr);
  constexpr int64_t kFeatBytes = N * static_cast<int64_t>(sizeof(T));
  const int64_t weight_bytes = args.heads * static_cast<int64_t>(sizeof(W));
  auto feat_row = [&](int64_t p) { return args.feat_by_edge ? adj.edge_id(p) : adj.column(p); };
  int64_t head[N];
  for (int i = 0; i < N; ++i) head[i] = i / args.dim;

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    double sum[N] = {};
    for (int64_t p = begin; p < end; ++p) {
      const int64_t ahead = p + kPrefetchEdges;
      if (adj.has(ahead)) {
        prefetch_edge(feat, feat_row(ahead), kFeatBytes);
        if (weight) prefetch_edge(weight, adj.edge_id(ahead), weight_bytes);
      }
      const T* x = feat + feat_row(p) * N;
      const float scale = scales ? scales[adj.column(p)] : 1.f;
      if (weight) {
        const W* w = weight + adj.edge_id(p) * args.heads;
        for (int i = 0; i < N; ++i) sum[i] += scale * to_float(w[head[i]]) * to_float(x[i]);
      } else {
        for (int i = 0; i < N; ++i) sum[i] += scale * to_float(x[i]);
      }
    }
    const double factor =
        args.divide_by_degree && end > begin ? args.factor / static_cast<double>(end - begin) : args.factor;
    float result[N];
    for (int i = 0; i < N; ++i) result[i] = static_cast<float>(factor * sum[i]);
    encode_apart(result, N, args.out_type, args.out, row);
  }
}

template <class T, class W, class I>
inline void spmm_narrow(const SpmmSumArgs& args, int64_t begin, int64_t end) {
  switch (args.heads * args.dim) {
    case 1: return spmm_narrow_rows<1, T, W, I>(args, begin, end);
    case 2: return spmm_narrow_rows<2, T, W, I>(args, begin, end);
    case 3: return spmm_narrow_rows<3, T, W, I>(args, begin, end);
    case 4: return spmm_narrow_rows<4, T, W, I>(args, begin, end);
    case 5: return spmm_narrow_rows<5, T, W, I>(args, begin, end);
    case 6: return spmm_narrow_rows<6, T, W, I>(args, begin, end);
    default: return spmm_narrow_rows<7, T, W, I>(args, begin, end);
  }
}

// ---- any operator, broadcast, reduction and type

template <class Acc, class I>
void spmm_rows(const SpmmArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  const int64_t n = args.out_len;
  MessageBuffers<Acc> buffers(args.op, args.lhs, args.rhs, args.broadcast, n);
  RunningSum<Acc> totals(n);
  I* arg = static_cast<I*>(args.arg);

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    I* row_arg = arg ? arg + row * n : nullptr;
    Acc* total = totals.start();
    if (row_arg)
      for (int64_t i = 0; i < n; ++i) row_arg[i] = -1;
    for (int64_t p = begin; p < end; ++p) {
      const int64_t edge = adj.edge_id(p), ahead = p + kPrefetchEdges;
      if (adj.has(ahead)) buffers.prefetch(adj.column(ahead), adj.edge_id(ahead));
      const Acc* message = buffers.message(row, adj.column(p), edge);
      if (p == begin) {
        memcpy(total, message, static_cast<size_t>(n) * sizeof(Acc));
        if (row_arg)
          for (int64_t i = 0; i < n; ++i) row_arg[i] = static_cast<I>(edge);
      } else {
        reduce_into(args.reduce, n, message, total, row_arg, static_cast<I>(edge));
      }
      if (!row_arg) totals.added(1);
    }
    total = totals.finish();
    if (args.reduce == Reduce::kMean && end > begin)
      for (int64_t i = 0; i < n; ++i) total[i] /= static_cast<Acc>(end - begin);
    encode(total, n, args.out_type, args.out, row);
  }
}

// ---- the kernels of the table

static void spmm_sum(const SpmmSumArgs& args, int64_t begin, int64_t end) {
  with_vector_type(args.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    with_partner_type<T>(args.weight_type, [&](auto w) {
      using W = TypeOf<decltype(w)>;
      with_index(args.topology.is_int64, [&](auto i) {
        using I = TypeOf<decltype(i)>;
        if (args.dim < 8) return spmm_narrow<T, W, I>(args, begin, end);
        with_block<T>(args.dim, [&](auto b) { spmm_sum_rows<decltype(b), W, I>(args, begin, end); });
      });
    });
  });
}
static void spmm(const SpmmArgs& args, int64_t begin, int64_t end) {
  with_general_types(args.out_type, args.topology,
                     [&](auto a, auto i) { spmm_rows<TypeOf<decltype(a)>, TypeOf<decltype(i)>>(args, begin, end); });
}

extern const SpmmKernels kSpmm;
const SpmmKernels kSpmm = {spmm_sum, spmm};

}  // namespace halfgnn::HALFGNN_ISA
