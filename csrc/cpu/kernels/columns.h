// The columns (heads) of edge data as a constant, so that the compiler unrolls loops over them.
#pragma once

#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

// C columns, or `runtime` if C is 0.
template <int C>
struct Columns {
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

}  // namespace halfgnn::HALFGNN_ISA
