// SDDMM: dots (vector kernel), operators without broadcasting (chunks), and any operator (general).
#pragma once

#include "chunk.h"
#include "dot_row.h"
#include "kernels.h"
#include "message.h"
#include "rows.h"

namespace halfgnn::HALFGNN_ISA {

// ---- dots of rows of at least 8 elements per head

// dots[k * heads + h] = <x, row_k> over each head, for K rows.
template <class B, int K>
HALFGNN_INLINE void dot_rows(const Blocks<B>& blocks, const float* x, const typename B::V& mask,
                             const typename B::Element* const* rows, float* dots) {
  using V = typename B::V;
  for (int64_t h = 0; h < blocks.heads; ++h) {
    V sum[K] = {};
    for (int64_t b = 0; b + 1 < blocks.per_head; ++b) {
      const V own = B::load_acc(x + blocks.slot(h, b));
      for (int k = 0; k < K; ++k) sum[k] = multiply_add(own, B::load(rows[k] + blocks.offset(h, b)), sum[k]);
    }
    const int64_t last = blocks.per_head - 1;
    const V own = B::load_acc(x + blocks.slot(h, last));
    for (int k = 0; k < K; ++k)
      sum[k] = multiply_add(own, keep(B::load(rows[k] + blocks.offset(h, last)), mask), sum[k]);
    for (int k = 0; k < K; ++k) dots[k * blocks.heads + h] = B::sum(sum[k]);
  }
}

template <class B>
HALFGNN_BATCH void dot_batch(const Blocks<B>& blocks, int count, const float* x, const typename B::V& mask,
                             const typename B::Element* const* rows, float* dots) {
  switch (count) {
    case 4: return dot_rows<B, 4>(blocks, x, mask, rows, dots);
    case 3: return dot_rows<B, 3>(blocks, x, mask, rows, dots);
    case 2: return dot_rows<B, 2>(blocks, x, mask, rows, dots);
    default: return dot_rows<B, 1>(blocks, x, mask, rows, dots);
  }
}

// One of lhs and rhs is at the row, the other at the column or the edge. dim = broadcast.inner, heads =
// broadcast.outer.
template <class B, class I>
void sddmm_dot_rows(const SddmmArgs& args, int64_t row_begin, int64_t row_end) {
  using T = typename B::Element;
  const Adjacency<I> adj(args.topology);
  const Blocks<B> blocks(args.broadcast.outer, args.broadcast.inner);
  const bool lhs_is_row = args.lhs.target == Target::kRow;
  const T* own = static_cast<const T*>(lhs_is_row ? args.lhs.data : args.rhs.data);
  const Operand& other = lhs_is_row ? args.rhs : args.lhs;
  const T* feat = static_cast<const T*>(other.data);
  const int64_t len = blocks.len();
  auto feat_row = [&](int64_t p) {
    return feat + (other.target == Target::kEdge ? adj.edge_id(p) : static_cast<int64_t>(adj.indices[p])) * len;
  };
  const int64_t out_bytes = blocks.heads * size_of(args.out_type);
  const InverseDegrees<float, I> row_scale(args.mean_indptr);
  DotRow<B, T> x(blocks);
  const typename B::V mask = B::tail_mask(blocks.overlap());
  Buffer<float> dots(kBatch * blocks.heads);

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    if (begin == end) continue;
    x.set(own + row * len);
    const float factor = row_scale ? row_scale[row] : 1.f;
    for (int64_t p = begin; p < end; p += kBatch) {
      const int count = static_cast<int>(end - p < kBatch ? end - p : kBatch);
      const T* rows[kBatch];
      for (int k = 0; k < count; ++k) {
        rows[k] = feat_row(p + k);
        const int64_t ahead = p + k + kPrefetchEdges;
        if (!adj.has(ahead)) continue;
        prefetch_row(feat_row(ahead), len);
        prefetch_edge_for_write(args.out, adj.edge_id(ahead), out_bytes);
      }
      dot_batch<B>(blocks, count, x.lanes(), mask, rows, dots);
      for (int64_t i = 0; i < count * blocks.heads; ++i) dots[i] *= factor;
      for (int k = 0; k < count; ++k)
        encode(dots + k * blocks.heads, blocks.heads, args.out_type, args.out, adj.edge_id(p + k));
    }
  }
}

// ---- operators without broadcasting on rows of one type: a chunk is gathered, combined and scattered flat

template <class T, class I>
class ChunkOperand {
 public:
  ChunkOperand(const Adjacency<I>& adj, const Operand& operand)
      : adj_(adj), operand_(operand), chunk_(adj, operand.len) {}
  HALFGNN_BATCH const float* load(const RowChunk<I>& rows) {
    const T* data = static_cast<const T*>(operand_.data);
    const int64_t begin = rows.begin(), end = rows.end();
    if (operand_.target == Target::kEdge) {
      chunk_.load(data, begin, end);
    } else if (operand_.target == Target::kCol) {
      chunk_.gather(data, begin, end, [this](int64_t p) { return adj_.column(p); });
    } else {
      repeat_rows(data, rows);
    }
    return chunk_.at(begin);
  }

 private:
  void repeat_rows(const T* data, const RowChunk<I>& rows) {
    chunk_.reserve(rows.begin(), rows.end());
    const int64_t n = operand_.len;
    float* out = chunk_.at(rows.begin());
    for (int64_t row = rows.first_row; row < rows.last_row; ++row) {
      const int64_t degree = adj_.indptr[row + 1] - adj_.indptr[row];
      if (degree == 0) continue;
      const float* first = out;
      decode_row(data + row * n, n, out);
      out += n;
      for (int64_t i = 0; i < (degree - 1) * n; ++i) out[i] = first[i];
      out += (degree - 1) * n;
    }
  }
  const Adjacency<I>& adj_;
  Operand operand_;
  EdgeChunk<float, T, I> chunk_;
};

template <class T, class I>
void sddmm_elementwise_rows(const SddmmArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  const int64_t n = args.out_len;
  const Op op = args.op;
  ChunkOperand<T, I> lhs(adj, args.lhs), rhs(adj, args.rhs);
  EdgeChunk<float, T, I> out(adj, n);
  for (RowChunk<I> chunk(adj, row_begin, row_end, n); chunk.next();) {
    const int64_t begin = chunk.begin(), end = chunk.end(), values = (end - begin) * n;
    if (values == 0) continue;
    const float* l = reads_lhs(op) ? lhs.load(chunk) : nullptr;
    const float* r = reads_rhs(op) ? rhs.load(chunk) : nullptr;
    out.reserve(begin, end);
    float* message = out.at(begin);
    if (l && r) {
      const int64_t zero = 0;
      form_message(op, Broadcast{1, values, &zero, &zero, &zero, 1, 1, 1}, l, r, message);
    } else {
      memcpy(message, l ? l : r, static_cast<size_t>(values) * sizeof(float));
    }
    if (args.out_type == DType::kFloat) {
      out.store(static_cast<float*>(args.out), begin, end);
    } else {
      out.store(static_cast<T*>(args.out), begin, end);
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
  with_vector_type(args.lhs.type, [&](auto t) {
    with_block<TypeOf<decltype(t)>>(args.broadcast.inner, [&](auto b) {
      with_index(args.topology.is_int64,
                 [&](auto i) { sddmm_dot_rows<decltype(b), TypeOf<decltype(i)>>(args, begin, end); });
    });
  });
}
static void sddmm_elementwise(const SddmmArgs& args, int64_t begin, int64_t end) {
  with_vector_type(reads_lhs(args.op) ? args.lhs.type : args.rhs.type, [&](auto t) {
    with_index(args.topology.is_int64,
               [&](auto i) { sddmm_elementwise_rows<TypeOf<decltype(t)>, TypeOf<decltype(i)>>(args, begin, end); });
  });
}
static void sddmm(const SddmmArgs& args, int64_t begin, int64_t end) {
  with_general_types(args.out_type, args.topology,
                     [&](auto a, auto i) { sddmm_rows<TypeOf<decltype(a)>, TypeOf<decltype(i)>>(args, begin, end); });
}

extern const SddmmKernels kSddmm;
const SddmmKernels kSddmm = {sddmm_dot, sddmm_elementwise, sddmm};

}  // namespace halfgnn::HALFGNN_ISA
