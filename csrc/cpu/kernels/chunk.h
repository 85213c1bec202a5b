// Edge data of a few values per edge, in chunks of whole rows: gathered into one flat buffer, worked on with full
// vectors whatever the degrees, and scattered back.
#pragma once

#include "buffer.h"
#include "convert.h"
#include "rows.h"

namespace halfgnn::HALFGNN_ISA {

// Consecutive rows, at least one, of about kValues values in all: few enough for the first-level cache.
template <class I>
class RowChunk {
 public:
  static constexpr int64_t kValues = 2048;
  RowChunk(const Adjacency<I>& adj, int64_t row_begin, int64_t row_end, int64_t values_per_edge)
      : first_row(row_begin), last_row(row_begin), adj_(adj), row_end_(row_end), edges_(kValues / values_per_edge) {}
  // Moves on to the next rows; false at the end.
  bool next() {
    first_row = last_row;
    if (first_row == row_end_) return false;
    do ++last_row;
    while (last_row < row_end_ && adj_.indptr[last_row + 1] - adj_.indptr[first_row] <= edges_);
    return true;
  }
  int64_t begin() const { return adj_.indptr[first_row]; }
  int64_t end() const { return adj_.indptr[last_row]; }
  int64_t first_row, last_row;

 private:
  const Adjacency<I>& adj_;
  int64_t row_end_, edges_;
};

// The values of a chunk's edges as Acc, in edge order.
template <class Acc, class T, class I>
class EdgeChunk {
 public:
  EdgeChunk(const Adjacency<I>& adj, int64_t columns) : adj_(adj), columns_(columns) {}
  ~EdgeChunk() { free(values_); }
  EdgeChunk(const EdgeChunk&) = delete;
  EdgeChunk& operator=(const EdgeChunk&) = delete;

  // Room for the edges [begin, end), values undefined.
  void reserve(int64_t begin, int64_t end) {
    begin_ = begin;
    const int64_t n = (end - begin) * columns_;
    if (n <= capacity_) return;
    free(values_);
    capacity_ = 0;
    values_ = static_cast<Acc*>(malloc(static_cast<size_t>(2 * n) * sizeof(Acc)));
    if (!values_) throw std::bad_alloc();
    capacity_ = 2 * n;
  }
  void load(const T* data, int64_t begin, int64_t end) {
    if (adj_.edge_ids) return gather(data, begin, end, [this](int64_t p) { return adj_.edge_id(p); });
    reserve(begin, end);
    decode_row(data + begin * columns_, (end - begin) * columns_, values_);
  }
  // Row row_of(position) of `data` for every position.
  template <class RowOf>
  HALFGNN_INLINE void gather(const T* data, int64_t begin, int64_t end, RowOf row_of) {
    reserve(begin, end);
    Acc* out = values_;
    for (int64_t p = begin; p < end; ++p, out += columns_) {
      if (adj_.has(p + kPrefetchEdges)) prefetch_row(data + row_of(p + kPrefetchEdges) * columns_, columns_);
      decode_row(data + row_of(p) * columns_, columns_, out);
    }
  }
  template <class S>
  void store(S* data, int64_t begin, int64_t end) const {
    if (!adj_.edge_ids) return encode_row(values_, (end - begin) * columns_, data + begin * columns_);
    // Rounded in one go, then scattered.
    Buffer<S> rounded((end - begin) * columns_);
    encode_row(values_, (end - begin) * columns_, rounded.get());
    const int64_t bytes = columns_ * static_cast<int64_t>(sizeof(S));
    const S* row = rounded;
    for (int64_t p = begin; p < end; ++p, row += columns_) {
      if (adj_.has(p + kPrefetchEdges)) prefetch_edge_for_write(data, adj_.edge_id(p + kPrefetchEdges), bytes);
      S* out = data + adj_.edge_id(p) * columns_;
      for (int64_t c = 0; c < columns_; ++c) out[c] = row[c];
    }
  }
  Acc* at(int64_t position) { return values_ + (position - begin_) * columns_; }

 private:
  const Adjacency<I>& adj_;
  int64_t columns_;
  int64_t begin_ = 0;
  int64_t capacity_ = 0;
  Acc* values_ = nullptr;
};

}  // namespace halfgnn::HALFGNN_ISA
