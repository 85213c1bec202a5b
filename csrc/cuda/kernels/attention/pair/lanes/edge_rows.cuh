// Rows that edges add to keys and values (PairEdgeArgs), and their gradients, for GATv2 and dot attention. They lie at
// the edge's id.
#pragma once

#include "frame.cuh"
#include "own_row.cuh"
#include "products.cuh"

namespace halfgnn::cuda {

template <class Config>
class PairEdgeRows {
  using Frame = PairFrame<Config>;
  using T = typename Config::Element;
  using Row = typename Config::Row;
  static constexpr int kVector = Config::kVector;
  static constexpr bool kIsDot = Config::kTwoRows;

 public:
  __device__ explicit PairEdgeRows(const Frame& frame)
      : frame_(frame), first_(HeadVectors<1>(frame.args.layout, frame.work, 0).index[0] * kVector) {}

  // Of a place past the last edge, those of that edge: its factors are 0.
  template <class Batch>
  __device__ void load(const Batch& batch, PairRows<Config, Batch::kEdges>& rows) const {
    const PairEdgeArgs& edge = frame_.args.edge;
    uint64_t at[Batch::kEdges];
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) at[u] = element_of(batch, u);
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) rows.edge_keys[u][0] = load_row(edge.key, at[u]);
    if constexpr (kIsDot) {
      const bool is_one_row = edge.key == edge.value;
#pragma unroll
      for (int u = 0; u < Batch::kEdges; ++u) {
        rows.edge_values[u][0] = is_one_row ? rows.edge_keys[u][0] : load_row(edge.value, at[u]);
      }
    }
  }

  // factors: of all edges of the batch. products: of GATv2, whose rows of edges are in the gradient of attn.
  template <class Batch>
  __device__ void store_gradients(const Batch& batch, const PairOwnRow<Config>& own,
                                  const PairRows<Config, Batch::kEdges>& rows,
                                  const PairFactors<Batch::kEdges>& factors, PairProducts<Config>& products) const {
    const PairEdgeArgs& edge = frame_.args.edge;
    float product[kVector] = {};
    const bool writes = frame_.work.exists(frame_.args.layout) && own.exists();
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) {
      const uint64_t at = element_of(batch, u);
      float of_key[kVector];
      if constexpr (kIsDot) {
        own.score().edge_gradient(frame_.args, factors.key[u], of_key);
      } else {
        own.score().edge_gradient(frame_.args, factors.key[u], rows.signs[u], rows.edge_keys[u][0], of_key, product);
      }
      if (!writes || !batch.has(frame_.place(batch, u))) continue;
      if constexpr (kIsDot) store_value_gradient(own, factors.value[u], at, of_key);
      if (edge.grad_key != nullptr) store_rounded(static_cast<T*>(edge.grad_key) + at, of_key);
    }
    if constexpr (Config::kHasEdgeProducts) products.add_edges(product);
  }

 private:
  // Where the lane's vector of edge u of its group starts; of a place past the last edge, that of the last. The whole
  // warp takes part.
  template <class Batch>
  __device__ uint64_t element_of(const Batch& batch, int u) const {
    const uint32_t edge = __shfl_sync(kFullMask, batch.chunk.edge, batch.read(frame_.place(batch, u)));
    return static_cast<uint64_t>(edge) * frame_.args.row_elements + first_;
  }
  // Adds it to of_key where one row is key and value.
  __device__ void store_value_gradient(const PairOwnRow<Config>& own, float factor, uint64_t at,
                                       float (&of_key)[kVector]) const {
    const PairEdgeArgs& edge = frame_.args.edge;
    const bool is_one_row = edge.grad_value == nullptr && edge.key == edge.value;
    float of_value[kVector];
    own.value().widen(of_value);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      of_value[i] *= factor;
      of_key[i] += is_one_row ? of_value[i] : 0.f;
    }
    if (edge.grad_value != nullptr) store_rounded(static_cast<T*>(edge.grad_value) + at, of_value);
  }
  static __device__ Row load_row(const void* rows, uint64_t at) {
    Row row{};
    if (rows != nullptr) row = Row::load_streaming(static_cast<const T*>(rows) + at);
    return row;
  }

  const Frame frame_;
  uint32_t first_;  // of the lane's vector in a row
};

}  // namespace halfgnn::cuda
