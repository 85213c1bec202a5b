// Checks of codes of 8 bits and of their scales.
#pragma once

#include "../core/arguments.h"
#include "checks.h"

namespace halfgnn {

inline Code code_of(const Tensor& codes, const char* name) {
  switch (codes.scalar_type()) {
    case ScalarType::Byte: return Code::kUInt8;
    case ScalarType::Char: return Code::kInt8;
    case ScalarType::Float8_e4m3fn: return Code::kFloat8E4M3;
    case ScalarType::Float8_e5m2: return Code::kFloat8E5M2;
    default:
      CHECK_TYPE(false, name, " has dtype ", dtype_name(codes.scalar_type()),
                 "; expected torch.uint8, torch.int8, torch.float8_e4m3fn or torch.float8_e5m2 beside scale");
  }
}

// One value; one for each row, (N, 1, ...); or one for each column, of the shape of a row.
inline ScalePer scale_per(const Tensor& scale, const Tensor& codes, const char* name) {
  if (scale.numel() == 1) return ScalePer::kTable;
  const Shape columns = trailing(codes.sizes());
  if (scale.sizes() == IntArrayRef(columns)) return ScalePer::kColumn;
  const std::vector<int64_t> rows = with_rows(codes.size(0), Shape(columns.size(), 1));
  CHECK_VALUE(scale.sizes() == IntArrayRef(rows), "scale has shape ", scale.sizes(), "; expected [], ",
              IntArrayRef(rows), " or ", IntArrayRef(columns), ", for a ", name, " of shape ", codes.sizes());
  return ScalePer::kRow;
}

// All but devices, of which there may be two.
inline Scales scales_of(const Tensor& codes, const char* name, const Tensor& scale, const OptionalTensor& zero_point) {
  const auto check = [](const Tensor& values, const char* values_name) {
    CHECK_TYPE(values.scalar_type() == ScalarType::Float, values_name, " has dtype ", dtype_name(values.scalar_type()),
               "; expected torch.float32");
    CHECK_VALUE(values.is_contiguous(), values_name, " has strides ", values.strides(),
                "; expected it to be contiguous");
  };
  const Code code = code_of(codes, name);
  check(scale, "scale");
  Scales scales;
  scales.per = scale_per(scale, codes, name);
  scales.scale = static_cast<const float*>(scale.const_data_ptr());
  if (!zero_point) return scales;
  check(*zero_point, "zero_point");
  CHECK_TYPE(code == Code::kUInt8 || code == Code::kInt8, "zero_point is given for ", dtype_name(codes.scalar_type()),
             "; expected none, since floating-point numbers have a zero");
  CHECK_VALUE(zero_point->sizes() == scale.sizes(), "zero_point has shape ", zero_point->sizes(),
              "; expected that of scale, ", scale.sizes());
  scales.zero_point = static_cast<const float*>(zero_point->const_data_ptr());
  return scales;
}

}  // namespace halfgnn
