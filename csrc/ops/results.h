// Memory of the operators' results.
#pragma once

#include "../core/huge_pages.h"
#include "../torch/tensor.h"

namespace halfgnn {

// empty, for a result that may be large.
inline Tensor new_result(IntArrayRef sizes, const TensorOptions& options) {
  Tensor result = empty(sizes, options);
  if (result.device().is_cpu() && result.numel() > 0)
    advise_huge_pages(result.mutable_data_ptr(), static_cast<int64_t>(result.nbytes()));
  return result;
}

template <class T = void>
T* data_or_null(Tensor& tensor, bool is_wanted) {
  return is_wanted ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}
inline const void* data_or_null(const Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

// x in that type, without a call of PyTorch if it has it.
inline Tensor as_type(const Tensor& x, ScalarType type) { return x.scalar_type() == type ? x : x.to(type); }

// The type in which values of x are summed, and results that are not rounded are returned.
inline ScalarType accumulator(const Tensor& x) {
  return x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

}  // namespace halfgnn
