// Rows of edges, and other large results, stored past the caches. An ordinary store first reads its line of memory, and
// evicts what is still to be read. That is worth avoiding for results that no cache could hold until somebody reads
// them.
#pragma once

#include "blocks.h"
#include "buffer.h"
#include "rows.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace halfgnn::HALFGNN_ISA {

// Whether the rows of a result are stored so: if they are whole lines of memory, and many. What was stored is ordered
// before what a thread does after this object's end.
class RowStream {
 public:
  RowStream(const void* rows, int64_t count, int64_t row_bytes)
      : RowStream(rows, row_bytes, Total{count * row_bytes}) {}
  // Of one of several results that are made together, which have `total` bytes.
  struct Total {
    int64_t bytes;
  };
  RowStream(const void* rows, int64_t row_bytes, Total total)
      : streams_(rows && row_bytes % kLine == 0 && reinterpret_cast<uintptr_t>(rows) % kLine == 0 &&
                 total.bytes >= kLeast) {}
  RowStream(const RowStream&) = delete;
  RowStream& operator=(const RowStream&) = delete;
  ~RowStream() {
#if defined(__SSE2__)
    if (streams_) _mm_sfence();
#endif
  }
  explicit operator bool() const { return streams_; }

 private:
  static constexpr int64_t kLine = 64, kLeast = int64_t{1} << 24;
  bool streams_;
};

// `count` elements, which fill lines of memory together with what is stored next to them at the same time.
template <class E>
HALFGNN_INLINE void stream_row(const E* row, int64_t count, E* out) {
#if defined(__SSE2__)
  constexpr int64_t kStep = sizeof(__m128i) / sizeof(E);
  for (int64_t i = 0; i < count; i += kStep)
    _mm_stream_si128(reinterpret_cast<__m128i*>(out + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i)));
#else
  memcpy(out, row, static_cast<size_t>(count) * sizeof(E));
#endif
}

// Stores a block of a row.
template <class B, class E>
HALFGNN_INLINE void store_block(typename B::V x, E* p, bool streams) {
  if constexpr (B::kWidth > 1) {
    if (streams) {
      E block[B::kWidth];
      B::store(x, block);
      return stream_row(block, B::kWidth, p);
    }
  }
  B::store(x, p);
}

// Rows of results of edges that are made one after the other: where they are, or in a buffer that is then streamed.
template <class E>
class RowResults {
 public:
  RowResults(void* rows, int64_t count, int64_t len)
      : len_(len), stream_(rows, count, len * static_cast<int64_t>(sizeof(E))), buffer_(stream_ ? len : 0) {}
  HALFGNN_INLINE void prefetch(const E* row) const {
    if (!stream_) __builtin_prefetch(row, 1);
  }
  // Where a row is to be written, and that it was.
  HALFGNN_INLINE E* open(E* row) { return stream_ ? buffer_.get() : row; }
  HALFGNN_INLINE void close(E* row) {
    if (stream_) stream_row(buffer_.get(), len_, row);
  }

 private:
  int64_t len_;
  RowStream stream_;
  Buffer<E> buffer_;
};

}  // namespace halfgnn::HALFGNN_ISA
