// Whole rows of any length, converted between the type of their elements and the type that is computed in.
#pragma once

#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

template <class T, class Acc>
HALFGNN_INLINE void decode_row(const T* p, int64_t n, Acc* out) {
  int64_t i = 0;
  if constexpr (sizeof(Acc) == 4 && sizeof(T) < 8) {
    for (; i + kLanes <= n; i += kLanes) store_vector(load_vector(p + i), out + i);
  }
  for (; i < n; ++i) out[i] = static_cast<Acc>(to_float(p[i]));
}
template <class T>
HALFGNN_INLINE void encode_row(const float* p, int64_t n, T* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_vector(load_vector(p + i), out + i);
  if (i == n) return;
  float rest[kLanes] = {};
  T rounded[kLanes];
  for (int64_t j = i; j < n; ++j) rest[j - i] = p[j];
  store_vector(load_vector(rest), rounded);
  for (int64_t j = i; j < n; ++j) out[j] = rounded[j - i];
}
HALFGNN_INLINE void encode_row(const double* p, int64_t n, double* out) {
  memcpy(out, p, static_cast<size_t>(n) * sizeof(double));
}

// Reads row `row` of an operand as values of Acc.
template <class Acc>
inline void decode(const Operand& operand, int64_t row, Acc* out) {
  const int64_t first = row * operand.len;
  with_type(operand.type, [&](auto t) {
    decode_row(static_cast<const TypeOf<decltype(t)>*>(operand.data) + first, operand.len, out);
  });
}
// Stores n values, rounded once, as row `row` of a matrix of `type`.
inline void encode(const float* values, int64_t n, DType type, void* out, int64_t row) {
  with_vector_type(type, [&](auto t) { encode_row(values, n, static_cast<TypeOf<decltype(t)>*>(out) + row * n); });
}
// The same as a call, for a kernel that is compiled many times.
HALFGNN_NOINLINE inline void encode_apart(const float* values, int64_t n, DType type, void* out, int64_t row) {
  encode(values, n, type, out, row);
}
inline void encode(const double* values, int64_t n, DType, void* out, int64_t row) {
  encode_row(values, n, static_cast<double*>(out) + row * n);
}

}  // namespace halfgnn::HALFGNN_ISA
