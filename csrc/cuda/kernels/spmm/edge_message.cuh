// What the kernels behind edge_sum.h share: which instantiations there are, and how one is chosen.
#pragma once

#include <type_traits>

#include "edge_sum_launch.h"
#include "row_lane.cuh"

namespace halfgnn::cuda {

// kMessage of rows of type T, which are gathered (in the backward those of the gradient), and rows of edge data of type
// E. N: the type of the node's own row, in the backward.
template <Message kMessageOfEdge, typename N, typename T, typename E, int kVectorElements, int kVectorsPerLane>
struct EdgeSumConfig : GatherConfig<T, kVectorElements, kVectorsPerLane> {
  using Node = N;
  using Edge = E;
  static constexpr Message kMessage = kMessageOfEdge;
  static constexpr int kEdgeVectorBytes = kVectorElements * static_cast<int>(sizeof(E));
};

// Not x > 0 ? x : 0: NaN stays NaN.
inline __device__ float relu_if(float x, float value) { return x <= 0.f ? 0.f : value; }

// f(Message as a constant)
template <class F>
cudaError_t with_message(Op op, const F& f) {
  switch (op) {
    case Op::kMul: return f(std::integral_constant<Message, Message::kMul>{});
    case Op::kReluAdd: return f(std::integral_constant<Message, Message::kReluAdd>{});
    default: return f(std::integral_constant<Message, Message::kAdd>{});
  }
}

}  // namespace halfgnn::cuda
