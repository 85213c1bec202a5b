// SDDMM: dots (vector kernel), operators without broadcasting and sums of three operands (chunks), and any operator
// (general).
#pragma once

#include "chunk.h"
#include "dot_row.h"
#include "kernels.h"
#include "message.h"
#include "rows.h"
#include "stream.h"

namespace halfgnn::HALFGNN_ISA {

// ---- dots of rows of at least 8 elements per head

// dots[k * heads + h] = <x, row_k> over each head, for K rows.
template <class B, int K>
HALFGNN_INLINE void dot_rows(const Blocks<B>& blocks, const DotRow<B, typename B::Element>& x,
                             const DotBatch<typename B::Element>& batch, float* dots) {
  for (int64_t h = 0; h < blocks.heads; ++h) {
    typename B::V sum[K];
    dot_head<B, K>(blocks, x, h, batch, sum);
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
                                  const DotBatch<typename B::Element>& batch, float* dots) {
  for (int64_t h = 0; h < blocks.heads; h += 4) {
    FourSums sums[4];
    for (int i = 0; i < 4; ++i) {
      typename B::V sum[4];
      dot_head<B, 4, kBlocks>(blocks, x, h + i, batch, sum);
      sums[i] = add_four(sum);
    }
    store_sixteen_sums(sums, dots + h, blocks.heads);
  }
}
template <class B>
HALFGNN_NOINLINE void dot_fours(const Blocks<B>& blocks, const DotRow<B, typename B::Element>& x,
                                const DotBatch<typename B::Element>& batch, float* dots) {
  switch (blocks.overlap() ? 0 : blocks.per_head) {
    case 1: return dot_four_rows<B, 1>(blocks, x, batch, dots);
    case 2: return dot_four_rows<B, 2>(blocks, x, batch, dots);
    case 4: return dot_four_rows<B, 4>(blocks, x, batch, dots);
    default: return dot_four_rows<B, 0>(blocks, x, batch, dots);
  }
}

// Fewer than four rows.
template <class B>
HALFGNN_BATCH void dot_rest(const Blocks<B>& blocks, int count, const DotRow<B, typename B::Element>& x,
                            const DotBatch<typename B::Element>& batch, float* dots) {
  switch (count) {
    case 3: return dot_rows<B, 3>(blocks, x, batch, dots);
    case 2: return dot_rows<B, 2>(blocks, x, batch, dots);
    default: return dot_rows<B, 1>(blocks, x, batch, dots);
  }
}

// Rows of an operand that is not at the row: row ids[position], or row `position` itself.
template <class T, class I>
struct FarRows {
  const T* data;
  const I* ids;
  int64_t len;
  FarRows(const Adjacency<I>& adj, const Operand& operand)
      : data(static_cast<const T*>(operand.data)),
        ids(operand.target == Target::kEdge ? adj.edge_ids : adj.indices),
        len(operand.len) {}
  HALFGNN_INLINE const T* operator[](int64_t position) const {
    return data + (ids ? static_cast<int64_t>(ids[position]) : position) * len;
  }
};

// The edges [begin, end) of a row by fours, as far as there are others to prefetch. Returns the first that is left.
template <class B, class I>
HALFGNN_NOINLINE int64_t dot_edges(const Blocks<B>& blocks, const DotRow<B, typename B::Element>& x,
                                   const FarRows<typename B::Element, I>& far, int64_t begin, int64_t end,
                                   EdgeResults<I>& results) {
  int64_t p = begin;
  for (; p + kBatch <= end; p += kBatch) {
    DotBatch<typename B::Element> batch;
    for (int k = 0; k < kBatch; ++k) batch.rows[k] = far[p + k];
    for (int k = 0; k < kBatch; ++k) batch.ahead[k] = far[p + k + kPrefetchEdges];
    float* dots = results.next(p, kBatch);
    blocks.heads % 4 ? dot_rows<B, kBatch>(blocks, x, batch, dots) : dot_fours(blocks, x, batch, dots);
  }
  return p;
}

// One of lhs and rhs is at the row, the other at the column or the edge. dim = broadcast.inner, heads =
// broadcast.outer. Blocks are cut for the type of the other one. If that of the row's differs, its rows are decoded.
template <class B, class I>
void sddmm_dot_rows(const SddmmArgs& args, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  const Adjacency<I> adj(args.topology);
  const Blocks<B> blocks(args.broadcast.outer, args.broadcast.inner);
  const bool lhs_is_row = args.lhs.target == Target::kRow;
  const Operand& own = lhs_is_row ? args.lhs : args.rhs;
  const bool decodes = args.lhs.type != args.rhs.type;
  const FarRows<T, I> far(adj, lhs_is_row ? args.rhs : args.lhs);
  const InverseDegrees<float, I> row_scale(args.mean_indptr);
  DotRow<B, T> x(blocks);
  Buffer<float> decoded(decodes ? blocks.len() : 0);
  EdgeResults<I> results(adj, blocks.heads, args.out_type, args.out, adj.indptr[row_begin], kBatch);

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1], last = adj.num_edges - kPrefetchEdges;
    if (begin == end) continue;
    if (decodes) {
      decode(own, row, decoded.get());
      x.set_floats(decoded.get());
    } else {
      x.set(static_cast<const T*>(own.data) + row * blocks.len());
    }
    if (row_scale) x.scale(row_scale[row]);
    int64_t p = dot_edges(blocks, x, far, begin, end < last ? end : last, results);
    while (p < end) {
      const int count = static_cast<int>(end - p < kBatch - 1 ? end - p : kBatch - 1);
      DotBatch<T> batch;
      for (int k = 0; k < count; ++k) {
        batch.rows[k] = far[p + k];
        batch.ahead[k] = far[adj.has(p + k + kPrefetchEdges) ? p + k + kPrefetchEdges : p + k];
      }
      dot_rest<B>(blocks, count, x, batch, results.next(p, count));
      p += count;
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
template <class T, class S, class I>
void sddmm_narrow_rows(const SddmmArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  const int64_t n = args.out_len;
  GatheredRows<T, I> lhs(adj, n), rhs(adj, n);
  ScatteredRows<S, I> out(adj, n, args.out);
  for (RowChunk<I> chunk(adj, row_begin, row_end, n); chunk.next();) {
    const int64_t begin = chunk.begin(), end = chunk.end();
    if (begin == end) continue;
    const auto load = [&](GatheredRows<T, I>& rows, const Operand& operand) {
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
template <class T, class S, class I>
void sddmm_wide_rows(const SddmmArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  const int64_t n = args.out_len;
  const Operand& first = reads_lhs(args.op) ? args.lhs : args.rhs;
  const Operand& second = reads_rhs(args.op) ? args.rhs : args.lhs;
  const FarRows<T, I> lhs(adj, first), rhs(adj, second);
  const bool lhs_is_row = first.target == Target::kRow, rhs_is_row = second.target == Target::kRow;
  RowResults<S> out(args.out, adj.num_edges, n);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t end = adj.indptr[row + 1];
    for (int64_t p = adj.indptr[row]; p < end; ++p) {
      const int64_t ahead = p + kPrefetchEdges;
      if (adj.has(ahead)) {
        if (!lhs_is_row) prefetch_row(lhs[ahead], n);
        if (!rhs_is_row) prefetch_row(rhs[ahead], n);
        out.prefetch(adj.edge_id(ahead));
      }
      const int64_t edge = adj.edge_id(p);
      combine_values(args.op, lhs_is_row ? lhs.data + row * n : lhs[p], rhs_is_row ? rhs.data + row * n : rhs[p], n,
                     out.open(edge));
      out.close(edge);
    }
  }
}

// A half operand and an fp32 one: rows are decoded before they are combined.
template <class I>
void sddmm_mixed_rows(const SddmmArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  const int64_t n = args.out_len;
  DecodedRow<float> lhs(args.lhs), rhs(args.rhs);
  RowResults<float> out(args.out, adj.num_edges, n);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t end = adj.indptr[row + 1];
    for (int64_t p = adj.indptr[row]; p < end; ++p) {
      const int64_t edge = adj.edge_id(p), col = adj.column(p), ahead = p + kPrefetchEdges;
      if (adj.has(ahead)) {
        lhs.prefetch(adj.column(ahead), adj.edge_id(ahead));
        rhs.prefetch(adj.column(ahead), adj.edge_id(ahead));
        out.prefetch(adj.edge_id(ahead));
      }
      combine_values(args.op, lhs.at(row, col, edge), rhs.at(row, col, edge), n, out.open(edge));
      out.close(edge);
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
template <class T, class S, class I>
void sddmm_add_narrow_rows(const SddmmAddArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  const int64_t n = args.dim;
  GatheredRows<T, I> cols(adj, n), rows(adj, n), edges(adj, n);
  ScatteredRows<S, I> out(adj, n, args.out);
  for (RowChunk<I> chunk(adj, row_begin, row_end, n); chunk.next();) {
    const int64_t begin = chunk.begin(), end = chunk.end();
    if (begin == end) continue;
    add_values(cols.gather(static_cast<const T*>(args.col), adj.indices, begin, end),
               rows.repeat(static_cast<const T*>(args.row), chunk),
               edges.edges(static_cast<const T*>(args.edge), begin, end), (end - begin) * n, out.open(begin, end));
    out.close(begin, end);
  }
}

// Longer rows, one after the other.
template <class T, class S, class I>
void sddmm_add_wide_rows(const SddmmAddArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  const int64_t n = args.dim;
  const T* row_data = static_cast<const T*>(args.row);
  const T* col_data = static_cast<const T*>(args.col);
  const T* edge_data = static_cast<const T*>(args.edge);
  RowResults<S> out(args.out, adj.num_edges, n);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t end = adj.indptr[row + 1];
    for (int64_t p = adj.indptr[row]; p < end; ++p) {
      const int64_t ahead = p + kPrefetchEdges;
      if (adj.has(ahead)) {
        prefetch_row(col_data + adj.column(ahead) * n, n);
        prefetch_row(edge_data + adj.edge_id(ahead) * n, n);
        out.prefetch(adj.edge_id(ahead));
      }
      const int64_t edge = adj.edge_id(p);
      add_values(col_data + adj.column(p) * n, row_data + row * n, edge_data + edge * n, n, out.open(edge));
      out.close(edge);
    }
  }
}

// ---- any operator, broadcast and type

template <class Acc, class I>
void sddmm_rows(const SddmmArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  const Broadcast& broadcast = args.broadcast;
  MessageBuffers<Acc> buffers(args.op, args.lhs, args.rhs, broadcast, broadcast.outer * broadcast.inner);
  const int64_t out_bytes = args.out_len * size_of(args.out_type);
  const InverseDegrees<Acc, I> row_scale(args.mean_indptr);
  Buffer<Acc> result(args.out_len);

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t end = adj.indptr[row + 1];
    for (int64_t p = adj.indptr[row]; p < end; ++p) {
      const int64_t edge = adj.edge_id(p), ahead = p + kPrefetchEdges;
      if (adj.has(ahead)) {
        buffers.prefetch(adj.column(ahead), adj.edge_id(ahead));
        prefetch_edge_for_write(args.out, adj.edge_id(ahead), out_bytes);
      }
      const Acc* message = buffers.message(row, adj.column(p), edge);
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
    with_block<TypeOf<decltype(t)>>(args.broadcast.inner, [&](auto b) {
      with_index(args.topology.is_int64,
                 [&](auto i) { sddmm_dot_rows<decltype(b), TypeOf<decltype(i)>>(args, begin, end); });
    });
  });
}
static void sddmm_elementwise(const SddmmArgs& args, int64_t begin, int64_t end) {
  if (reads_lhs(args.op) && reads_rhs(args.op) && args.lhs.type != args.rhs.type) {
    return with_index(args.topology.is_int64, [&](auto i) { sddmm_mixed_rows<TypeOf<decltype(i)>>(args, begin, end); });
  }
  with_vector_type(reads_lhs(args.op) ? args.lhs.type : args.rhs.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    with_same_or_float<T>(args.out_type, [&](auto s) {
      using S = TypeOf<decltype(s)>;
      with_index(args.topology.is_int64, [&](auto i) {
        using I = TypeOf<decltype(i)>;
        if (args.out_len * static_cast<int64_t>(sizeof(T)) <= kMoveBytes)
          return sddmm_narrow_rows<T, S, I>(args, begin, end);
        sddmm_wide_rows<T, S, I>(args, begin, end);
      });
    });
  });
}
static void sddmm_add(const SddmmAddArgs& args, int64_t begin, int64_t end) {
  with_index(args.topology.is_int64, [&](auto i) {
    using I = TypeOf<decltype(i)>;
    if (args.type == DType::kDouble) return sddmm_add_wide_rows<double, double, I>(args, begin, end);
    with_vector_type(args.type, [&](auto t) {
      using T = TypeOf<decltype(t)>;
      with_same_or_float<T>(args.out_type, [&](auto s) {
        using S = TypeOf<decltype(s)>;
        if (args.dim * static_cast<int64_t>(sizeof(T)) <= kMoveBytes)
          return sddmm_add_narrow_rows<T, S, I>(args, begin, end);
        sddmm_add_wide_rows<T, S, I>(args, begin, end);
      });
    });
  });
}
static void sddmm(const SddmmArgs& args, int64_t begin, int64_t end) {
  with_general_types(args.out_type, args.topology,
                     [&](auto a, auto i) { sddmm_rows<TypeOf<decltype(a)>, TypeOf<decltype(i)>>(args, begin, end); });
}

extern const SddmmKernels kSddmm;
const SddmmKernels kSddmm = {sddmm_dot, sddmm_elementwise, sddmm_add, sddmm};

}  // namespace halfgnn::HALFGNN_ISA
