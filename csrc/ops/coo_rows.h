// Operands of operators over an edge list.
#pragma once

#include "checks.h"

namespace halfgnn {

// Rows (N, *) in the type in which they are added.
struct CooRows {
  Tensor tensor;
  int64_t dim = 1;

  CooRows(const Tensor& given, const char* name) {
    CHECK_TYPE(given.defined(), name, " is None; expected rows, (N, *)");
    CHECK_VALUE(given.dim() >= 1, name, " has no dimensions; expected rows, (N, *)");
    CHECK_VALUE(given.device().is_cpu(), name, " is on ", given.device(), "; expected the device of row, cpu");
    const bool is_half = size_of(dtype_of(given.scalar_type(), name)) == 2;
    tensor = (is_half ? given.to(ScalarType::Float) : given).contiguous();
    for (int64_t d = 1; d < given.dim(); ++d) dim *= given.size(d);
  }
  bool is_double() const { return tensor.scalar_type() == ScalarType::Double; }
  const void* data() const { return tensor.const_data_ptr(); }
};

}  // namespace halfgnn
