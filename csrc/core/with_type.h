// From an element type that is known at run time to the C++ type behind it. Torch-free, for hosts and devices.
#pragma once

#include "host_device.h"
#include "types.h"

namespace halfgnn {

// Hands a type to a generic lambda: [&](auto t) { using T = TypeOf<decltype(t)>; ... }
template <class T>
struct Type {
  using type = T;
};
template <class Tag>
using TypeOf = typename Tag::type;

// The C++ types of a back end. A back end without a type for kDouble must not be asked for one: it would get kFloat's.
template <class HalfType, class BFloat16Type, class... DoubleType>
struct ElementTypes {};

#if defined(__CUDACC__)
#pragma nv_exec_check_disable  // a lambda of the host is called on the host only
#endif
template <class HalfType, class BFloat16Type, class... DoubleType, class F>
HALFGNN_HOST_DEVICE auto with_type(ElementTypes<HalfType, BFloat16Type, DoubleType...>, DType type, F f) {
  switch (type) {
    case DType::kHalf: return f(Type<HalfType>{});
    case DType::kBFloat16: return f(Type<BFloat16Type>{});
    default:
      if constexpr (sizeof...(DoubleType) > 0) {
        if (type == DType::kDouble) return f(Type<DoubleType>{}...);
      }
      return f(Type<float>{});
  }
}

}  // namespace halfgnn
