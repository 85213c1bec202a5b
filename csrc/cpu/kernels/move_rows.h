// Rows of a few bytes, moved as they are: gathered, scattered and repeated without a look at their type.
#pragma once

#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

// Copies rows of W bytes if kWhole. Otherwise of W to 2 W bytes, in two moves that overlap.
template <int W, bool kWhole>
struct RowMove {
  static constexpr int kPattern = kWhole && W <= 8 ? W : 0;  // bytes of a number that may be such a row
  int64_t runtime;
  HALFGNN_INLINE int64_t bytes() const { return kWhole ? W : runtime; }
  HALFGNN_INLINE void operator()(const char* from, char* to) const {
    memcpy(to, from, W);
    if (!kWhole) memcpy(to + runtime - W, from + runtime - W, W);
  }
};
// Of any length.
struct LongMove {
  static constexpr int kPattern = 0;
  int64_t runtime;
  HALFGNN_INLINE int64_t bytes() const { return runtime; }
  HALFGNN_INLINE void operator()(const char* from, char* to) const { memcpy(to, from, static_cast<size_t>(runtime)); }
};
// Rows of more bytes take a call each.
constexpr int64_t kMoveBytes = 64;

// f(a move of rows of `bytes` >= 2 bytes)
template <class F>
HALFGNN_INLINE void with_move(int64_t bytes, F f) {
  switch (bytes) {
    case 2: return f(RowMove<2, true>{2});
    case 4: return f(RowMove<4, true>{4});
    case 8: return f(RowMove<8, true>{8});
    case 16: return f(RowMove<16, true>{16});
    default: break;
  }
  if (bytes < 8) return f(RowMove<4, false>{bytes});
  if (bytes < 16) return f(RowMove<8, false>{bytes});
  if (bytes < 32) return f(RowMove<16, false>{bytes});
  if (bytes <= kMoveBytes) return f(RowMove<32, false>{bytes});
  return f(LongMove{bytes});
}

// Row i of `to` = row ids[i] of `from`.
template <class I>
HALFGNN_NOINLINE void gather_moves(const void* from, const I* ids, int64_t n, int64_t bytes, void* to) {
  with_move(bytes, [&](auto move) {
    const char* data = static_cast<const char*>(from);
    char* out = static_cast<char*>(to);
    for (int64_t i = 0; i < n; ++i) move(data + static_cast<int64_t>(ids[i]) * move.bytes(), out + i * move.bytes());
  });
}
// Row ids[i] of `to` = row i of `from`. `known`: how many ids there are, n or more; lines ahead are prefetched.
template <class I>
HALFGNN_NOINLINE void scatter_moves(const void* from, const I* ids, int64_t n, int64_t known, int64_t bytes, void* to) {
  constexpr int64_t kAhead = 24;
  with_move(bytes, [&](auto move) {
    const char* data = static_cast<const char*>(from);
    char* out = static_cast<char*>(to);
    const auto row = [&](int64_t i) { return out + static_cast<int64_t>(ids[i]) * move.bytes(); };
    const int64_t far = known - kAhead < n ? known - kAhead : n;
    int64_t i = 0;
    for (; i < far; ++i) {
      __builtin_prefetch(row(i + kAhead), 1);
      move(data + i * move.bytes(), row(i));
    }
    for (; i < n; ++i) move(data + i * move.bytes(), row(i));
  });
}

// What repeat_moves() may write behind the last row.
constexpr int64_t kRepeatBytes = 32;
template <class E>
HALFGNN_INLINE void fill(const char* row, int64_t bytes, char* out) {
  typedef E Pattern __attribute__((vector_size(kRepeatBytes)));
  E element;
  memcpy(&element, row, sizeof(E));
  const Pattern pattern = element + Pattern{};
  for (int64_t i = 0; i < bytes; i += kRepeatBytes) memcpy(out + i, &pattern, sizeof(pattern));
}
// Row r of `from` as often as indptr says, for the rows [begin, end).
template <class I>
HALFGNN_NOINLINE void repeat_moves(const void* from, const I* indptr, int64_t begin, int64_t end, int64_t bytes,
                                   void* to) {
  with_move(bytes, [&](auto move) {
    char* out = static_cast<char*>(to);
    const char* row = static_cast<const char*>(from) + begin * move.bytes();
    for (int64_t r = begin; r < end; ++r, row += move.bytes()) {
      const int64_t all = (indptr[r + 1] - indptr[r]) * move.bytes();
      constexpr int kPattern = decltype(move)::kPattern;
      if constexpr (kPattern == 2) {
        fill<uint16_t>(row, all, out);
      } else if constexpr (kPattern == 4) {
        fill<uint32_t>(row, all, out);
      } else if constexpr (kPattern == 8) {
        fill<uint64_t>(row, all, out);
      } else {
        for (int64_t i = 0; i < all; i += move.bytes()) move(row, out + i);
      }
      out += all;
    }
  });
}

}  // namespace halfgnn::HALFGNN_ISA
