// SpMM on the CPU. Included once for each instruction set (see kernels_impl.h).
#pragma once

#include "kernels.h"
#include "message.h"
#include "vec.h"

namespace halfgnn {
namespace HALFGNN_ISA {

// The rows of one topology with its index type resolved.
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
  // Whether a position so far ahead exists, so that what it needs can be prefetched.
  HALFGNN_INLINE bool has(int64_t position) const { return position < num_edges; }
};

// A row of heads * dim elements cut into blocks of B::kWidth. The last block of a head is moved back so that it ends
// with the head: it overlaps its neighbour instead of reading past the end. Sums of equal columns are equal, so storing
// both is harmless; where lanes are added up across a block (dot products) `overlap` lanes of it must be zeroed on one
// side.
template <class B>
struct Blocks {
  int64_t heads, dim, per_head;
  Blocks(int64_t heads, int64_t dim) : heads(heads), dim(dim), per_head((dim + B::kWidth - 1) / B::kWidth) {}
  int64_t workspace() const { return heads * per_head * B::kWidth; }
  HALFGNN_INLINE int64_t offset(int64_t head, int64_t block) const {
    const int64_t start = block * B::kWidth, last = dim - B::kWidth;
    return head * dim + (start < last ? start : last);
  }
  HALFGNN_INLINE int64_t slot(int64_t head, int64_t block) const { return (head * per_head + block) * B::kWidth; }
  int64_t overlap() const { return per_head * B::kWidth - dim; }
};

// Edges that are processed together: their loads overlap, and the running sum is read and written once for all of them.
constexpr int kBatch = 4;
// How many edges ahead a row is prefetched; rows longer than the limit are left to the hardware after their first
// lines.
constexpr int64_t kPrefetchEdges = 12;
constexpr int64_t kPrefetchBytes = 512;

// Edge data of a few elements, reached through edge_ids in any order: the line it starts in.
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
  for (int64_t i = 0; i < end; i += 64) __builtin_prefetch(p + i);
  __builtin_prefetch(p + end - 1);
}

// A row of sums. Terms are added one after the other for kRun edges, and the sums of such runs in fp64: the rounding
// error of a hub is that of a run, whatever the degree.
constexpr int64_t kRun = 64;
template <class Acc>
class RunningSum {
 public:
  explicit RunningSum(int64_t n) : n_(n), run_(n), total_(n) {}
  // Begins a row; what is then added to the returned values is reported with added().
  HALFGNN_INLINE Acc* start() {
    for (int64_t i = 0; i < n_; ++i) run_[i] = 0;
    count_ = 0;
    folded_ = false;
    return run_;
  }
  HALFGNN_INLINE Acc* sum() { return run_; }  // what start() returned
  HALFGNN_INLINE void added(int64_t edges) {
    count_ += edges;
    if (count_ >= kRun) fold();
  }
  // What was added so far, times a factor a head: n / heads consecutive elements each.
  void rescale(int64_t heads, const Acc* factor) {
    const int64_t width = n_ / heads;
    for (int64_t i = 0; i < heads * width; ++i) {
      run_[i] *= factor[i / width];
      if (folded_) total_[i] *= factor[i / width];
    }
  }
  HALFGNN_INLINE Acc* finish() {
    if (folded_)
      for (int64_t i = 0; i < n_; ++i) run_[i] = static_cast<Acc>(total_[i] + run_[i]);
    return run_;
  }

 private:
  __attribute__((noinline)) void fold() {
    for (int64_t i = 0; i < n_; ++i) {
      total_[i] = (folded_ ? total_[i] : 0.) + run_[i];
      run_[i] = 0;
    }
    folded_ = true;
    count_ = 0;
  }
  int64_t n_, count_ = 0;
  bool folded_ = false;
  Scratch<Acc> run_;
  Scratch<double> total_;
};

// sum += weight_k * row_k for `K` rows, weights one a head (row k's at weight + k * heads).
template <class B, int K, bool kWeighted, class T>
HALFGNN_INLINE void add_rows(const Blocks<B>& blocks, const T* const* rows, const float* weight, float* sum) {
  using V = typename B::V;
  for (int64_t h = 0; h < blocks.heads; ++h) {
    f32x8 w[K];
    for (int k = 0; k < K; ++k) w[k] = kWeighted ? splat(weight[k * blocks.heads + h]) : splat(1.f);
    for (int64_t b = 0; b < blocks.per_head; ++b) {
      float* slot = sum + blocks.slot(h, b);
      const int64_t offset = blocks.offset(h, b);
      V total = load_lanes<B::kWidth / 8>(slot);
      for (int k = 0; k < K; ++k) {
        const V x = B::load(rows[k] + offset);
        total = kWeighted ? multiply_add(w[k], x, total) : add(total, x);
      }
      store_lanes(total, slot);
    }
  }
}

template <class B, bool kWeighted, class T>
HALFGNN_BATCH void add_batch(const Blocks<B>& blocks, int count, const T* const* rows, const float* weight,
                             float* sum) {
  switch (count) {
    case 4: return add_rows<B, 4, kWeighted>(blocks, rows, weight, sum);
    case 3: return add_rows<B, 3, kWeighted>(blocks, rows, weight, sum);
    case 2: return add_rows<B, 2, kWeighted>(blocks, rows, weight, sum);
    default: return add_rows<B, 1, kWeighted>(blocks, rows, weight, sum);
  }
}

template <class B, class S>
HALFGNN_INLINE void store_row_as(const Blocks<B>& blocks, const float* sum, float factor, S* out) {
  for (int64_t h = 0; h < blocks.heads; ++h)
    for (int64_t b = 0; b < blocks.per_head; ++b)
      B::store(scale(splat(factor), load_lanes<B::kWidth / 8>(sum + blocks.slot(h, b))), out + blocks.offset(h, b));
}
template <class B, class T>
HALFGNN_INLINE void store_row(const Blocks<B>& blocks, const float* sum, float factor, DType type, void* out,
                              int64_t row) {
  const int64_t first = row * blocks.heads * blocks.dim;
  if (type == DType::kFloat) return store_row_as<B>(blocks, sum, factor, static_cast<float*>(out) + first);
  if constexpr (sizeof(T) == 4) {  // fp32 rows may be summed into either half type
    with_vector_type(
        type, [&](auto t) { store_row_as<B>(blocks, sum, factor, static_cast<TypeOf<decltype(t)>*>(out) + first); });
  } else {
    return store_row_as<B>(blocks, sum, factor, static_cast<T*>(out) + first);
  }
}

// Weights of one edge, one a head, times the scale of its column.
template <class W>
HALFGNN_INLINE void load_weights(const W* weight, const float* scale, int64_t edge, int64_t col, int64_t heads,
                                 float* out) {
  const float s = scale ? scale[col] : 1.f;
  for (int64_t h = 0; h < heads; ++h) out[h] = weight ? s * to_float(weight[edge * heads + h]) : s;
}

template <class B, class T, class W, class I>
void spmm_sum_rows(const SpmmSumArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  const Blocks<B> blocks(args.heads, args.dim);
  const int64_t len = args.heads * args.dim;
  const T* feat = static_cast<const T*>(args.feat);
  const W* weight = static_cast<const W*>(args.weight);
  const bool weighted = weight || args.scale;
  RunningSum<float> sums(blocks.workspace());
  Scratch<float> w(kBatch * args.heads);
  auto feat_row = [&](int64_t p) { return args.feat_by_edge ? adj.edge_id(p) : static_cast<int64_t>(adj.indices[p]); };

  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    float* sum = sums.start();
    for (int64_t p = begin; p < end; p += kBatch) {
      const int count = static_cast<int>(end - p < kBatch ? end - p : kBatch);
      const T* rows[kBatch];
      for (int k = 0; k < count; ++k) {
        rows[k] = feat + feat_row(p + k) * len;
        const int64_t ahead = p + k + kPrefetchEdges;
        if (!adj.has(ahead)) continue;
        prefetch_row(feat + feat_row(ahead) * len, len);
        if (weight) prefetch_edge(weight, adj.edge_id(ahead), args.heads * static_cast<int64_t>(sizeof(W)));
      }
      if (weighted) {
        for (int k = 0; k < count; ++k)
          load_weights(weight, args.scale, weight ? adj.edge_id(p + k) : 0, args.scale ? adj.indices[p + k] : 0,
                       args.heads, w + k * args.heads);
        add_batch<B, true>(blocks, count, rows, w, sum);
      } else {
        add_batch<B, false>(blocks, count, rows, w, sum);
      }
      sums.added(count);
    }
    const float factor =
        args.divide_by_degree && end > begin ? args.factor / static_cast<float>(end - begin) : args.factor;
    store_row<B, T>(blocks, sums.finish(), factor, args.out_type, args.out, row);
  }
}

// Rows of N < 8 elements in all: the sum stays in registers, in fp64 (see RunningSum).
template <int N, class T, class W, class I>
void spmm_narrow_rows(const SpmmSumArgs& args, int64_t row_begin, int64_t row_end) {
  const Adjacency<I> adj(args.topology);
  const T* feat = static_cast<const T*>(args.feat);
  const W* weight = static_cast<const W*>(args.weight);
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
      const float scale = args.scale ? args.scale[adj.column(p)] : 1.f;
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

// Any operator, broadcast, reduction and type.
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

}  // namespace HALFGNN_ISA
}  // namespace halfgnn
