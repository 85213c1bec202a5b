// Tensors of ATen.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/string_view.h>  // the dispatcher's type of a str, a class of its own before torch 2.6

#include <optional>
#include <string>
#include <vector>

namespace halfgnn {

using at::Device;
using at::DeviceType;
using at::IntArrayRef;
using at::ScalarType;
using at::Tensor;
using at::TensorOptions;
using c10::string_view;
using TensorList = std::vector<Tensor>;
using OptionalTensorList = c10::List<std::optional<Tensor>>;

using at::constant_pad_nd;
using at::empty;
using at::empty_like;
using at::mul;
using at::stack;
using at::sum;
using at::where;
using at::zeros;
using at::zeros_like;

inline const char* name_of(ScalarType type) { return c10::toString(type); }
inline std::tuple<Tensor, Tensor> stable_sort(const Tensor& values) {
  return at::sort(values, /*stable=*/true, /*dim=*/0, /*descending=*/false);
}

// On the current device of a type.
inline TensorOptions options_of(ScalarType type, DeviceType device) {
  return TensorOptions().dtype(type).device(device);
}

}  // namespace halfgnn
