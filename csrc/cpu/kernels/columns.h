// The columns (heads) of edge data as a constant, so that the compiler unrolls loops over them.
#pragma once

#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

// C columns, or `runtime` if C is 0.
template <int C>
struct Columns {
  static constexpr int kCount = C;
  int64_t runtime;
  HALFGNN_INLINE int64_t count() const { return C ? C : runtime; }
};
template <class F>
HALFGNN_INLINE void with_columns(int64_t columns, F f) {
  switch (columns) {
    case 1: return f(Columns<1>{1});
    case 4: return f(Columns<4>{4});
    case 8: return f(Columns<8>{8});
    default: return f(Columns<0>{columns});
  }
}

// ---- columns in the lanes of a vector: lane l is of column l % C

// All bits of the first n lanes.
HALFGNN_INLINE Words first_lanes(int64_t n) {
  static constexpr struct Table {
    uint32_t bits[2 * kLanes] = {};
    constexpr Table() {
      for (int i = 0; i < kLanes; ++i) bits[i] = 0xffffffffu;
    }
  } kTable;
  return load_unaligned<Words>(kTable.bits + kLanes - n);
}
// x in the lanes of `mask`, 0 elsewhere
HALFGNN_INLINE Floats keep(Floats x, Words mask) { return bit_cast<Floats>(bit_cast<Words>(x) & mask); }
// f(i, mask of its lanes) for the vectors of the values [begin, end). The last one may pass the end.
template <class F>
HALFGNN_INLINE void each_vector(int64_t begin, int64_t end, F f) {
  const Words all = ~Words{};
  for (; begin + kLanes <= end; begin += kLanes) f(begin, all);
  if (begin < end) f(begin, first_lanes(end - begin));
}
// Every lane becomes f of all lanes of its column, for C columns that divide a vector. (A recursion: a loop of four
// steps is not unrolled by GCC, which then moves lane by lane through memory.)
template <int C, int kBy = kLanes / 2, class F>
HALFGNN_INLINE Floats fold_columns(Floats v, F f) {
  if constexpr (kBy < C) {
    return v;
  } else {
    Floats turned;
    for (int l = 0; l < kLanes; ++l) turned[l] = v[l ^ kBy];
    return fold_columns<C, kBy / 2>(f(v, turned), f);
  }
}

}  // namespace halfgnn::HALFGNN_ISA
