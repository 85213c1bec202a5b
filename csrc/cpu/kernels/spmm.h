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

template <class B, class W>
void spmm_sum_rows(const SpmmSumArgs& args, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  const Adjacency adj(args.topology);
  const Blocks<B> blocks(args.heads, args.dim);
  const RowTiles<B> tiles(blocks);
  EdgeWindow<T, W> edges(adj, static_cast<const T*>(args.feat), blocks.len(), args.feat_by_edge,
                         static_cast<const W*>(args.weight), {args.mean_indptr, args.topology}, args.heads);
  RunningSum<float> sums(blocks.workspace());
  const int64_t run_edges = args.out_type == DType::kFloat ? kRun : kHalfRun;

  for (int64_t row = row_begin, begin = 0, end = adj.indptr[row_begin]; row < row_end; ++row) {
    begin = end;
    end = adj.indptr[row + 1];
    float* run = begin < end ? sums.start_runs() : sums.start();
    for (int64_t p = begin; p < end; p += run_edges) {
      if (p > begin) sums.next_run();
      const int64_t count = end - p < run_edges ? end - p : run_edges;
      edges.hold(p, count);
      tiles.sum(edges.rows(p), count, edges.weights(p), run);
    }
    const float factor =
        args.divide_by_degree && end > begin ? args.factor / static_cast<float>(end - begin) : args.factor;
    store_row(blocks, sums.finish(), factor, args.out_type, args.out, row);
  }
}

// ---- sums of rows of N < 8 elements in all: the sum stays in registers, in fp64 (see RunningSum)

// The sums of the first rows of a run of edges: of N elements, each multiplied by the weight of its head.
template <int N, class T>
HALFGNN_NOINLINE void add_narrow(const T* const* rows, int64_t count, const float* weight, int64_t heads, int64_t dim,
                                 double* sum) {
  double total[N];
  int64_t head[N];
  for (int i = 0; i < N; ++i) {
    total[i] = sum[i];
    head[i] = i / dim;
  }
  for (int64_t k = 0; k < count; ++k) {
    __builtin_prefetch(rows[k + kRowsAhead]);
    const T* x = rows[k];
    if (weight) {
      const float* w = weight + k * heads;
      for (int i = 0; i < N; ++i) total[i] += w[head[i]] * to_float(x[i]);
    } else {
      for (int i = 0; i < N; ++i) total[i] += to_float(x[i]);
    }
  }
  for (int i = 0; i < N; ++i) sum[i] = total[i];
}
template <class T>
inline void add_narrow(const T* const* rows, int64_t count, const float* weight, int64_t heads, int64_t dim,
                       double* sum) {
  switch (heads * dim) {
    case 1: return add_narrow<1>(rows, count, weight, heads, dim, sum);
    case 2: return add_narrow<2>(rows, count, weight, heads, dim, sum);
    case 3: return add_narrow<3>(rows, count, weight, heads, dim, sum);
    case 4: return add_narrow<4>(rows, count, weight, heads, dim, sum);
    case 5: return add_narrow<5>(rows, count, weight, heads, dim, sum);
    case 6: return add_narrow<6>(rows, count, weight, heads, dim, sum);
    default: return add_narrow<7>(rows, count, weight, heads, dim, sum);
  }
}

template <class T, class W>
void spmm_narrow_rows(const SpmmSumArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency adj(args.topology);
  const int64_t n = args.heads * args.dim;
  EdgeWindow<T, W> edges(adj, static_cast<const T*>(args.feat), n, args.feat_by_edge,
                         static_cast<const W*>(args.weight), {args.mean_indptr, args.topology}, args.heads);

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    double sum[7] = {};
    for (int64_t p = begin; p < end; p += kRun) {
      const int64_t count = end - p < kRun ? end - p : kRun;
      edges.hold(p, count);
      add_narrow(edges.rows(p), count, edges.weights(p), args.heads, args.dim, sum);
    }
    const double factor =
        args.divide_by_degree && end > begin ? args.factor / static_cast<double>(end - begin) : args.factor;
    float result[7];
    for (int64_t i = 0; i < n; ++i) result[i] = static_cast<float>(factor * sum[i]);
    encode_apart(result, n, args.out_type, args.out, row);
  }
}

// ---- any operator, broadcast, reduction and type

template <class Acc, class I>
void spmm_rows(const SpmmArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency adj(args.topology);
  const int64_t n = args.out_len;
  MessageBuffers<Acc> buffers(args.op, args.lhs, args.rhs, args.broadcast, n);
  RunningSum<Acc> totals(n);
  EdgeIds ids(adj);
  I* arg = static_cast<I*>(args.arg);

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    I* row_arg = arg ? arg + row * n : nullptr;
    Acc* total = totals.start();
    if (row_arg)
      for (int64_t i = 0; i < n; ++i) row_arg[i] = -1;
    for (int64_t p = begin; p < end; ++p) {
      ids.hold(p);
      const int64_t edge = ids.edge_id(p), ahead = p + kPrefetchEdges;
      if (ids.has_ahead(p)) buffers.prefetch(ids.column(ahead), ids.edge_id(ahead));
      const Acc* message = buffers.message(row, ids.column(p), edge);
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
      if (args.dim < 8) return spmm_narrow_rows<T, W>(args, begin, end);
      with_block<T, kNarrowLanes<T>>(args.dim, [&](auto b) { spmm_sum_rows<decltype(b), W>(args, begin, end); });
    });
  });
}
static void spmm(const SpmmArgs& args, int64_t begin, int64_t end) {
  with_accumulator(args.out_type, [&](auto a) {
    // Ids of winners are results.
    with_index(args.topology.is_int64,
               [&](auto i) { spmm_rows<TypeOf<decltype(a)>, TypeOf<decltype(i)>>(args, begin, end); });
  });
}

extern const SpmmKernels kSpmm;
const SpmmKernels kSpmm = {spmm_sum, spmm};

}  // namespace halfgnn::HALFGNN_ISA
