// SDDMM: dots (vector kernel), operators without broadcasting and sums of three operands (chunks), and any operator
// (general).
#pragma once

#include "chunk.h"
#include "dot_row.h"
#include "edge_window.h"
#include "kernels.h"
#include "message.h"
#include "rows.h"
#include "stream.h"

namespace halfgnn::HALFGNN_ISA {

// ---- dots of rows of at least 8 elements per head

// dots[k * heads + h] = <x, row_k> over each head, for K rows.
template <class B, int K>
HALFGNN_INLINE void dot_rows(const Blocks<B>& blocks, const DotRow<B, typename B::Element>& x,
                             const typename B::Element* const* rows, float* dots) {
  for (int64_t h = 0; h < blocks.heads; ++h) {
    typename B::V sum[K];
    dot_head<B, K>(blocks, x, h, rows, sum);
    if constexpr (K == 4) {
      store_four_sums(sum, dots + h, blocks.heads);
    } else {
      for (int k = 0; k < K; ++k) dots[k * blocks.heads + h] = B::sum(sum[k]);
    }
  }
}
// The same for four rows, and heads that come in fours.
template <class B, int kBlocks>
HALFGNN_INLINE void dot_four_rows(const Blocks<B>& blocks, const DotRow<B, typename B::Element>& x,
                                  const typename B::Element* const* rows, float* dots) {
  for (int64_t h = 0; h < blocks.heads; h += 4) {
    FourSums sums[4];
    for (int i = 0; i < 4; ++i) {
      typename B::V sum[4];
      dot_head<B, 4, kBlocks>(blocks, x, h + i, rows, sum);
      sums[i] = add_four(sum);
    }
    store_sixteen_sums(sums, dots + h, blocks.heads);
  }
}
template <class B>
HALFGNN_NOINLINE void dot_fours(const Blocks<B>& blocks, const DotRow<B, typename B::Element>& x,
                                const typename B::Element* const* rows, float* dots) {
  switch (blocks.overlap() ? 0 : blocks.per_head) {
    case 1: return dot_four_rows<B, 1>(blocks, x, rows, dots);
    case 2: return dot_four_rows<B, 2>(blocks, x, rows, dots);
    case 4: return dot_four_rows<B, 4>(blocks, x, rows, dots);
    default: return dot_four_rows<B, 0>(blocks, x, rows, dots);
  }
}

// Fewer than four rows.
template <class B>
HALFGNN_BATCH void dot_rest(const Blocks<B>& blocks, int count, const DotRow<B, typename B::Element>& x,
                            const typename B::Element* const* rows, float* dots) {
  switch (count) {
    case 3: return dot_rows<B, 3>(blocks, x, rows, dots);
    case 2: return dot_rows<B, 2>(blocks, x, rows, dots);
    default: return dot_rows<B, 1>(blocks, x, rows, dots);
  }
}

// Where the rows of an operand begin that is not at the row.
template <class T>
RowWindow<T> far_rows(const Adjacency& adj, const Operand& operand) {
  return {adj, static_cast<const T*>(operand.data), operand.len, operand.target == Target::kEdge};
}

// dots = <x, row> over each head, for `count` rows, which kPrefetchEdges more follow.
template <class B>
HALFGNN_NOINLINE void dot_run(const Blocks<B>& blocks, const DotRow<B, typename B::Element>& x,
                              const typename B::Element* const* rows, int64_t count, float* dots) {
  int64_t k = 0;
  for (; k + kBatch <= count; k += kBatch, rows += kBatch, dots += kBatch * blocks.heads)
    blocks.heads % 4 ? dot_rows<B, kBatch>(blocks, x, rows, dots) : dot_fours(blocks, x, rows, dots);
  if (k < count) dot_rest<B>(blocks, static_cast<int>(count - k), x, rows, dots);
}

// One of lhs and rhs is at the row, the other at the column or the edge. dim = broadcast.inner, heads =
// broadcast.outer. Blocks are cut for the type of the other one. If that of the row's differs, its rows are decoded.
template <class B>
void sddmm_dot_rows(const SddmmArgs& args, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  const Adjacency adj(args.topology);
  const Blocks<B> blocks(args.broadcast.outer, args.broadcast.inner);
  const bool lhs_is_row = args.lhs.target == Target::kRow;
  const Operand& own = lhs_is_row ? args.lhs : args.rhs;
  const bool decodes = args.lhs.type != args.rhs.type;
  RowWindow<T> far = far_rows<T>(adj, lhs_is_row ? args.rhs : args.lhs);
  const InverseDegrees<float> row_scale(args.mean_indptr, args.topology);
  DotRow<B, T> x(blocks);
  Buffer<float> decoded(decodes ? blocks.len() : 0);
  EdgeResults results(adj, blocks.heads, args.out_type, args.out, adj.indptr[row_begin], kRun);

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    if (begin == end) continue;
    if (decodes) {
      decode(own, row, decoded.get());
      x.set_floats(decoded.get());
    } else {
      x.set(static_cast<const T*>(own.data) + row * blocks.len());
    }
    if (row_scale) x.scale(row_scale[row]);
    for (int64_t p = begin; p < end; p += kRun) {
      const int64_t count = end - p < kRun ? end - p : kRun;
      far.hold(p, count);
      dot_run(blocks, x, far.rows(p), count, results.next(p, count));
    }
  }
  results.store(adj.indptr[row_end]);
}

// ---- operators without broadcasting

// The first n < kLanes values of a row as a vector. The others are 0.
template <class T>
HALFGNN_INLINE Floats load_first(const T* values, size_t n) {
  T padded[kLanes] = {};
  memcpy(padded, values, n * sizeof(T));
  return load_vector(padded);
}
// out[i] = f(rows[i]...)
template <class S, class F, class... T>
HALFGNN_INLINE void combine_values(int64_t n, S* out, F f, const T*... rows) {
  int64_t i = 0;
  if constexpr (((sizeof(S) == sizeof(T)) && ...)) {
    using P = Packed<S, 2 * kLanes>;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      const auto combine = [&](auto... x) {
        auto result = typename P::V{};
        for (int j = 0; j < 2; ++j) result.v[j] = f(x.v[j]...);
        P::store(result, out + i);
      };
      combine(P::load(rows + i)...);
    }
  }
  for (; i + kLanes <= n; i += kLanes) store_vector(f(load_vector(rows + i)...), out + i);
  if (i == n) return;
  S rest[kLanes];
  const size_t left = static_cast<size_t>(n - i);
  store_vector(f(load_first(rows + i, left)...), rest);
  memcpy(out + i, rest, left * sizeof(S));
}
// lhs op rhs. For copies both are the operand that is copied.
template <class T, class S>
HALFGNN_NOINLINE void combine_values(Op op, const T* lhs, const T* rhs, int64_t n, S* out) {
  switch (op) {
    case Op::kAdd: return combine_values(n, out, [](auto l, auto r) { return l + r; }, lhs, rhs);
    case Op::kSub: return combine_values(n, out, [](auto l, auto r) { return l - r; }, lhs, rhs);
    case Op::kMul: return combine_values(n, out, [](auto l, auto r) { return l * r; }, lhs, rhs);
    case Op::kDiv: return combine_values(n, out, [](auto l, auto r) { return l / r; }, lhs, rhs);
    default: return combine_values(n, out, [](auto l, auto) { return l; }, lhs, rhs);
  }
}

// Short rows: a chunk is gathered, combined and scattered flat.
template <class T, class S>
void sddmm_narrow_rows(const SddmmArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency adj(args.topology);
  const int64_t n = args.out_len;
  GatheredRows<T> lhs(adj, n), rhs(adj, n);
  ScatteredRows<S> out(adj, n, args.out);
  for (RowChunk chunk(adj, row_begin, row_end, n); chunk.next();) {
    const int64_t begin = chunk.begin(), end = chunk.end();
    if (begin == end) continue;
    const auto load = [&](GatheredRows<T>& rows, const Operand& operand) {
      const T* data = static_cast<const T*>(operand.data);
      if (operand.target == Target::kEdge) return rows.edges(data, begin, end);
      if (operand.target == Target::kCol) return rows.gather(data, adj.indices, begin, end);
      return rows.repeat(data, chunk);
    };
    const T* l = reads_lhs(args.op) ? load(lhs, args.lhs) : nullptr;
    const T* r = reads_rhs(args.op) ? load(rhs, args.rhs) : l;
    combine_values(args.op, l ? l : r, r, (end - begin) * n, out.open(begin, end));
    out.close(begin, end);
  }
}

// Longer rows, one after the other.
template <class T, class S>
void sddmm_wide_rows(const SddmmArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency adj(args.topology);
  const int64_t n = args.out_len;
  const Operand& first = reads_lhs(args.op) ? args.lhs : args.rhs;
  const Operand& second = reads_rhs(args.op) ? args.rhs : args.lhs;
  RowWindow<T> lhs = far_rows<T>(adj, first), rhs = far_rows<T>(adj, second);
  RowWindow<S> results(adj, static_cast<const S*>(args.out), n, true);
  const bool lhs_is_row = first.target == Target::kRow, rhs_is_row = second.target == Target::kRow;
  RowResults<S> out(args.out, adj.num_edges, n);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const T *own_lhs = static_cast<const T*>(first.data) + row * n,
            *own_rhs = static_cast<const T*>(second.data) + row * n;
    const int64_t end = adj.indptr[row + 1];
    for (int64_t p = adj.indptr[row]; p < end; p += kRun) {
      const int64_t count = end - p < kRun ? end - p : kRun;
      if (!lhs_is_row) lhs.hold(p, count);
      if (!rhs_is_row) rhs.hold(p, count);
      results.hold(p, count);
      const T* const* l = lhs_is_row ? nullptr : lhs.rows(p);
      const T* const* r = rhs_is_row ? nullptr : rhs.rows(p);
      S* const* o = const_cast<S* const*>(results.rows(p));
      for (int64_t k = 0; k < count; ++k) {
        if (l) prefetch_row(l[k + kPrefetchEdges], n);
        if (r) prefetch_row(r[k + kPrefetchEdges], n);
        out.prefetch(o[k + kPrefetchEdges]);
        combine_values(args.op, l ? l[k] : own_lhs, r ? r[k] : own_rhs, n, out.open(o[k]));
        out.close(o[k]);
      }
    }
  }
}

// A half operand and an fp32 one: rows are decoded before they are combined.
inline void sddmm_mixed_rows(const SddmmArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency adj(args.topology);
  const int64_t n = args.out_len;
  DecodedRow<float> lhs(args.lhs), rhs(args.rhs);
  float* results = static_cast<float*>(args.out);
  EdgeIds ids(adj);
  RowResults<float> out(args.out, adj.num_edges, n);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t end = adj.indptr[row + 1];
    for (int64_t p = adj.indptr[row]; p < end; ++p) {
      ids.hold(p);
      const int64_t edge = ids.edge_id(p), col = ids.column(p), ahead = p + kPrefetchEdges;
      if (ids.has_ahead(p)) {
        lhs.prefetch(ids.column(ahead), ids.edge_id(ahead));
        rhs.prefetch(ids.column(ahead), ids.edge_id(ahead));
        out.prefetch(results + ids.edge_id(ahead) * n);
      }
      combine_values(args.op, lhs.at(row, col, edge), rhs.at(row, col, edge), n, out.open(results + edge * n));
      out.close(results + edge * n);
    }
  }
}

// ---- sums of three operands, one each of the column, the row and the edge

template <class T, class S>
HALFGNN_NOINLINE void add_values(const T* col, const T* row, const T* edge, int64_t n, S* out) {
  if constexpr (sizeof(T) == 8) {
    for (int64_t i = 0; i < n; ++i) out[i] = col[i] + row[i] + edge[i];
  } else {
    combine_values(n, out, [](auto x, auto y, auto z) { return x + y + z; }, col, row, edge);
  }
}

// Short rows: a chunk is gathered, added and scattered flat.
template <class T, class S>
void sddmm_add_narrow_rows(const SddmmAddArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency adj(args.topology);
  const int64_t n = args.dim;
  GatheredRows<T> cols(adj, n), rows(adj, n), edges(adj, n);
  ScatteredRows<S> out(adj, n, args.out);
  for (RowChunk chunk(adj, row_begin, row_end, n); chunk.next();) {
    const int64_t begin = chunk.begin(), end = chunk.end();
    if (begin == end) continue;
    add_values(cols.gather(static_cast<const T*>(args.col), adj.indices, begin, end),
               rows.repeat(static_cast<const T*>(args.row), chunk),
               edges.edges(static_cast<const T*>(args.edge), begin, end), (end - begin) * n, out.open(begin, end));
    out.close(begin, end);
  }
}

// Longer rows, one after the other.
template <class T, class S>
void sddmm_add_wide_rows(const SddmmAddArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency adj(args.topology);
  const int64_t n = args.dim;
  const T* row_data = static_cast<const T*>(args.row);
  RowWindow<T> cols(adj, static_cast<const T*>(args.col), n, false),
      edges(adj, static_cast<const T*>(args.edge), n, true);
  RowWindow<S> results(adj, static_cast<const S*>(args.out), n, true);
  RowResults<S> out(args.out, adj.num_edges, n);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t end = adj.indptr[row + 1];
    for (int64_t p = adj.indptr[row]; p < end; p += kRun) {
      const int64_t count = end - p < kRun ? end - p : kRun;
      cols.hold(p, count);
      edges.hold(p, count);
      results.hold(p, count);
      const T *const *c = cols.rows(p), *const *e = edges.rows(p);
      S* const* o = const_cast<S* const*>(results.rows(p));
      for (int64_t k = 0; k < count; ++k) {
        prefetch_row(c[k + kPrefetchEdges], n);
        prefetch_row(e[k + kPrefetchEdges], n);
        out.prefetch(o[k + kPrefetchEdges]);
        add_values(c[k], row_data + row * n, e[k], n, out.open(o[k]));
        out.close(o[k]);
      }
    }
  }
}

// ---- any operator, broadcast and type

template <class Acc>
void sddmm_rows(const SddmmArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency adj(args.topology);
  const Broadcast& broadcast = args.broadcast;
  MessageBuffers<Acc> buffers(args.op, args.lhs, args.rhs, broadcast, broadcast.outer * broadcast.inner);
  const int64_t out_bytes = args.out_len * size_of(args.out_type);
  const InverseDegrees<Acc> row_scale(args.mean_indptr, args.topology);
  Buffer<Acc> result(args.out_len);
  EdgeIds ids(adj);

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t end = adj.indptr[row + 1];
    for (int64_t p = adj.indptr[row]; p < end; ++p) {
      ids.hold(p);
      const int64_t edge = ids.edge_id(p), ahead = p + kPrefetchEdges;
      if (ids.has_ahead(p)) {
        buffers.prefetch(ids.column(ahead), ids.edge_id(ahead));
        prefetch_edge_for_write(args.out, ids.edge_id(ahead), out_bytes);
      }
      const Acc* message = buffers.message(row, ids.column(p), edge);
      const Acc* values = message;
      if (args.op == Op::kDot) {
        for (int64_t o = 0; o < broadcast.outer; ++o) {
          Acc sum = 0;
          for (int64_t i = 0; i < broadcast.inner; ++i) sum += message[o * broadcast.inner + i];
          result[broadcast.out_offset[o]] = sum;
        }
        values = result;
      } else if (row_scale) {
        const Acc factor = row_scale[row];
        for (int64_t i = 0; i < args.out_len; ++i) result[i] = message[i] * factor;
        values = result;
      }
      encode(values, args.out_len, args.out_type, args.out, edge);
    }
  }
}

// ---- the kernels of the table

static void sddmm_dot(const SddmmArgs& args, int64_t begin, int64_t end) {
  with_vector_type((args.lhs.target == Target::kRow ? args.rhs : args.lhs).type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    const auto run = [&](auto b) { sddmm_dot_rows<decltype(b)>(args, begin, end); };
#if defined(HALFGNN_AVX512)
    // To add up the lanes of a vector takes as long as to multiply two blocks.
    if constexpr (!std::is_same<T, BFloat16>::value) {
      if (args.broadcast.inner >= 16 && args.broadcast.inner < 4 * kLanes) return run(Block<T, 16, 8>{});
    }
#endif
    with_block<T, kNarrowLanes<T>>(args.broadcast.inner, run);
  });
}
static void sddmm_elementwise(const SddmmArgs& args, int64_t begin, int64_t end) {
  if (reads_lhs(args.op) && reads_rhs(args.op) && args.lhs.type != args.rhs.type)
    return sddmm_mixed_rows(args, begin, end);
  with_vector_type(reads_lhs(args.op) ? args.lhs.type : args.rhs.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    with_same_or_float<T>(args.out_type, [&](auto s) {
      using S = TypeOf<decltype(s)>;
      if (args.out_len * static_cast<int64_t>(sizeof(T)) <= kMoveBytes)
        return sddmm_narrow_rows<T, S>(args, begin, end);
      sddmm_wide_rows<T, S>(args, begin, end);
    });
  });
}
static void sddmm_add(const SddmmAddArgs& args, int64_t begin, int64_t end) {
  if (args.type == DType::kDouble) return sddmm_add_wide_rows<double, double>(args, begin, end);
  with_vector_type(args.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    with_same_or_float<T>(args.out_type, [&](auto s) {
      using S = TypeOf<decltype(s)>;
      if (args.dim * static_cast<int64_t>(sizeof(T)) <= kMoveBytes)
        return sddmm_add_narrow_rows<T, S>(args, begin, end);
      sddmm_add_wide_rows<T, S>(args, begin, end);
    });
  });
}
static void sddmm(const SddmmArgs& args, int64_t begin, int64_t end) {
  with_accumulator(args.out_type, [&](auto a) { sddmm_rows<TypeOf<decltype(a)>>(args, begin, end); });
}

extern const SddmmKernels kSddmm;
const SddmmKernels kSddmm = {sddmm_dot, sddmm_elementwise, sddmm_add, sddmm};

}  // namespace halfgnn::HALFGNN_ISA
