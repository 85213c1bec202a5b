// From run-time types to the template arguments of the launchers in csrc/kernels.
#pragma once

#include <cstdint>

#include "../common/checks.h"

// Only pointers to these pass through the bindings. Their headers need more of the toolkit
// (libcu++) on the host compiler's include path.
struct __half;
struct __nv_bfloat16;

namespace halfgnn::cuda {

template <typename T>
struct Type {
  using type = T;
};

// Returns f(Type<T>()) for the device type of `type`; float64 has no CUDA kernels.
template <typename F>
auto with_element_type(DType type, const char* name, const F& f) {
  switch (type) {
    case DType::kHalf: return f(Type<__half>());
    case DType::kBFloat16: return f(Type<__nv_bfloat16>());
    case DType::kFloat: return f(Type<float>());
    case DType::kDouble: break;
  }
  TORCH_CHECK_TYPE(false, name, " has dtype Double; expected Half, BFloat16 or Float on CUDA");
}

template <typename F>
auto with_index_type(const Topology& topology, const F& f) {
  return topology.is_int64 ? f(Type<int64_t>()) : f(Type<int32_t>());
}

}  // namespace halfgnn::cuda
