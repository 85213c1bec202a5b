// What the kernels behind gated_sum.h share: gates, their inputs, and how an instantiation is chosen.
#pragma once

#include <type_traits>

#include "../core/softmax.cuh"
#include "gated_sum_launch.h"
#include "row_lane.cuh"

namespace halfgnn::cuda {

// sigmoid(z), and its derivative. Neither cancels: both are made of exp(-|z|).
struct Gate {
  float value, slope;
};

// Of operands of type T.
template <typename T>
__device__ Gate gate_of(float z) {
  const float t = exp_of_difference<T>(-fabsf(z));
  const float r = reciprocal_of<__half>(1.f + t);  // of 1 to 2: one ulp, good enough for fp32
  return {z > 0.f ? r : t * r, t * r * r};
}

// own + far + edge
template <typename T, int kVector>
__device__ void add_gates(const Fragment<T, kVector>& own, const Fragment<T, kVector>& far,
                          const Fragment<T, kVector>& edge, float (&z)[kVector]) {
  own.widen(z);
  far.add_to(z);
  edge.add_to(z);
}

// The k-th array's vector r of an edge, which is known to exist.
template <class Row, int kRepeat, int kCount>
__device__ Row load_given_edge_row(const EdgeArrays<kCount>& edges, int k, const LaneSource<kRepeat>& source,
                                   const char* of_edge, int r) {
  return Row::load_streaming(source.at(of_edge, r) + edges.distance[k]);
}

// The k-th array's vector r of an edge, or zeros if there is no such array.
template <class Row, int kRepeat, int kCount>
__device__ Row load_edge_row(const EdgeArrays<kCount>& edges, int k, const LaneSource<kRepeat>& source,
                             const char* of_edge, int r) {
  return edges.exists[k] ? load_given_edge_row<Row>(edges, k, source, of_edge, r) : Row{};
}

// f(elements of an access as a constant, accesses per lane as a constant): the widest that fits(elements), for rows of
// which a lane reads elements of at most kBytes.
template <int kBytes, class Fits, class F>
cudaError_t with_gated_vector(const Fits& fits, const F& f) {
  constexpr int kWidest = kMaxAccessBytes / kBytes;
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  if (fits(kWidest)) return f(std::integral_constant<int, kWidest>{}, One{});
  if (fits(2)) return f(Two{}, Two{});
  return f(One{}, std::integral_constant<int, 4>{});
}

}  // namespace halfgnn::cuda
