// Edge data of a few values per edge, in chunks of whole rows: gathered into one flat buffer, worked on with full
// vectors whatever the degrees, and scattered back.
#pragma once

#include <type_traits>

#include "buffer.h"
#include "convert.h"
#include "move_rows.h"
#include "rows.h"

namespace halfgnn::HALFGNN_ISA {

// Consecutive rows, at least one, of about kValues values in all: few enough for the first-level cache.
class RowChunk {
 public:
  static constexpr int64_t kValues = 2048;
  RowChunk(const Adjacency& adj, int64_t row_begin, int64_t row_end, int64_t values_per_edge)
      : first_row(row_begin), last_row(row_begin), adj_(adj), row_end_(row_end), edges_(kValues / values_per_edge) {}
  // Moves on to the next rows; false at the end.
  bool next() {
    first_row = last_row;
    if (first_row == row_end_) return false;
    adj_.indptr.resolve([&](const auto* indptr) { last_row = end_of_rows(indptr, first_row, row_end_, edges_); });
    return true;
  }
  int64_t begin() const { return adj_.indptr[first_row]; }
  int64_t end() const { return adj_.indptr[last_row]; }
  int64_t first_row, last_row;

 private:
  template <class I>
  static int64_t end_of_rows(const I* indptr, int64_t first, int64_t end, int64_t edges) {
    const int64_t most = indptr[first] + edges;
    int64_t row = first + 1;
    while (row < end && indptr[row + 1] <= most) ++row;
    return row;
  }
  const Adjacency& adj_;
  int64_t row_end_, edges_;
};

// Workspace that grows. Vectors may pass the end of what was asked for, by kPadding values.
template <class E>
class Growing {
 public:
  static constexpr int64_t kPadding = 2 * kLanes;
  Growing() = default;
  ~Growing() { free(data_); }
  Growing(const Growing&) = delete;
  Growing& operator=(const Growing&) = delete;
  // Room for n values, undefined.
  E* reserve(int64_t n) {
    if (n <= capacity_) return data_;
    free(data_);
    capacity_ = 0;
    data_ = static_cast<E*>(malloc(static_cast<size_t>(2 * n + kPadding) * sizeof(E)));
    if (!data_) throw std::bad_alloc();
    capacity_ = 2 * n;
    return data_;
  }
  E* get() const { return data_; }

 private:
  int64_t capacity_ = 0;
  E* data_ = nullptr;
};

// Rows of T of a chunk's edges, in edge order, as they are.
template <class T>
class GatheredRows {
 public:
  GatheredRows(const Adjacency& adj, int64_t columns) : adj_(adj), columns_(columns) {}
  // Rows of edge data. Those that lie in this order are not copied: what follows the last one is not to be read.
  const T* edges(const T* data, int64_t begin, int64_t end) {
    if (!adj_.edge_ids) return data + begin * columns_;
    return gather(data, adj_.edge_ids, begin, end);
  }
  // Row ids[position] of `data` for every position.
  const T* gather(const T* data, const Ids& ids, int64_t begin, int64_t end) {
    T* rows = rows_.reserve((end - begin) * columns_);
    ids.resolve([&](const auto* id) { gather_moves(data, id + begin, end - begin, bytes(), rows); });
    return rows;
  }
  // Whether rows are a copy, whose end vectors may pass.
  bool owns(const T* rows) const { return rows == rows_.get(); }
  // The row of an edge's row.
  const T* repeat(const T* data, const RowChunk& chunk) {
    static_assert(Growing<T>::kPadding * sizeof(T) >= kRepeatBytes, "room for the last pattern");
    T* rows = rows_.reserve((chunk.end() - chunk.begin()) * columns_);
    adj_.indptr.resolve(
        [&](const auto* indptr) { repeat_moves(data, indptr, chunk.first_row, chunk.last_row, bytes(), rows); });
    return rows;
  }

 private:
  int64_t bytes() const { return columns_ * static_cast<int64_t>(sizeof(T)); }
  const Adjacency& adj_;
  int64_t columns_;
  Growing<T> rows_;
};

// Where rows of S are made before they go to their edges: in place if they lie in this order.
template <class S>
class ScatteredRows {
 public:
  ScatteredRows(const Adjacency& adj, int64_t columns, void* data)
      : adj_(adj), columns_(columns), data_(static_cast<S*>(data)) {}
  S* open(int64_t begin, int64_t end) {
    return adj_.edge_ids ? rows_.reserve((end - begin) * columns_) : data_ + begin * columns_;
  }
  // Called when the rows of [begin, end) are made.
  void close(int64_t begin, int64_t end) {
    if (!adj_.edge_ids) return;
    adj_.edge_ids.resolve([&](const auto* ids) {
      scatter_moves(rows_.get(), ids + begin, end - begin, adj_.num_edges - begin,
                    columns_ * static_cast<int64_t>(sizeof(S)), data_);
    });
  }

 private:
  const Adjacency& adj_;
  int64_t columns_;
  S* data_;
  Growing<S> rows_;
};

// The values of a chunk's edges as Acc, in edge order.
template <class Acc, class T>
class EdgeChunk {
 public:
  EdgeChunk(const Adjacency& adj, int64_t columns) : columns_(columns), rows_(adj, columns) {}
  const Acc* load(const T* data, int64_t begin, int64_t end) {
    const int64_t n = (end - begin) * columns_;
    const T* rows = rows_.edges(data, begin, end);
    if constexpr (std::is_same<Acc, T>::value) {
      if (rows_.owns(rows)) return rows;
    }
    decode_row(rows, n, values_.reserve(n));
    return values_.get();
  }

 private:
  int64_t columns_;
  GatheredRows<T> rows_;
  Growing<Acc> values_;
};

// Results of a chunk's edges as Acc, which are rounded together.
template <class Acc, class T>
class EdgeResultChunk {
 public:
  EdgeResultChunk(const Adjacency& adj, int64_t columns, void* data) : columns_(columns), rows_(adj, columns, data) {}
  Acc* open(int64_t begin, int64_t end) { return values_.reserve((end - begin) * columns_); }
  void close(int64_t begin, int64_t end) {
    encode_row(values_.get(), (end - begin) * columns_, rows_.open(begin, end));
    rows_.close(begin, end);
  }

 private:
  int64_t columns_;
  ScatteredRows<T> rows_;
  Growing<Acc> values_;
};

// Results of consecutive edges in fp32, rounded together with full vectors and stored together.
class EdgeResults {
 public:
  // From `begin` on. At least `batch` edges are collected.
  EdgeResults(const Adjacency& adj, int64_t columns, DType type, void* data, int64_t begin, int64_t batch)
      : adj_(adj),
        columns_(columns),
        begin_(begin),
        edges_(columns > 0 && columns * batch < kValues ? kValues / columns : batch),
        type_(type),
        data_(data),
        values_(edges_ * columns),
        rounded_(edges_ * columns) {}
  // Room for `edges` more, from `position`, which follow those before.
  HALFGNN_INLINE float* next(int64_t position, int64_t edges) {
    if (position + edges > begin_ + edges_) {
      store(position);
      begin_ = position;
    }
    return values_ + (position - begin_) * columns_;
  }
  // Stores what there is, up to `end`.
  HALFGNN_NOINLINE void store(int64_t end) {
    const int64_t n = (end - begin_) * columns_, bytes = columns_ * size_of(type_);
    if (n == 0) return;
    with_vector_type(type_, [&](auto t) {
      using S = TypeOf<decltype(t)>;
      if (!adj_.edge_ids) return encode_row(values_.get(), n, static_cast<S*>(data_) + begin_ * columns_);
      S* rounded = reinterpret_cast<S*>(rounded_.get());
      encode_row(values_.get(), n, rounded);
      adj_.edge_ids.resolve([&](const auto* ids) {
        scatter_moves(rounded, ids + begin_, end - begin_, adj_.num_edges - begin_, bytes, data_);
      });
    });
  }

 private:
  static constexpr int64_t kValues = 256;
  const Adjacency& adj_;
  int64_t columns_, begin_, edges_;
  DType type_;
  void* data_;
  Buffer<float> values_, rounded_;
};

}  // namespace halfgnn::HALFGNN_ISA
