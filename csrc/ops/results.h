// Memory of the operators' results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "../core/huge_pages.h"

namespace halfgnn {

// at::empty, for a result that may be large.
inline at::Tensor new_result(at::IntArrayRef sizes, const at::TensorOptions& options) {
  at::Tensor result = at::empty(sizes, options);
  if (result.device().is_cpu() && result.numel() > 0)
    advise_huge_pages(result.mutable_data_ptr(), static_cast<int64_t>(result.nbytes()));
  return result;
}

}  // namespace halfgnn
