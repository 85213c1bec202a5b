// Rows that edges add to keys and values, and their gradients, for GATv2 and dot attention. They lie at the edge's id.
#pragma once

#include "edges.cuh"
#include "rows.cuh"

namespace halfgnn::cuda {

template <class Config>
class LaneEdgeRows : public LaneBias<Config> {
  using Base = LaneBias<Config>;
  using Base::edge_at;
  using Base::frame_;
  using Base::terms;
  using typename Base::Frame;
  using typename Base::T;
  using Row = typename Config::Row;
  static constexpr int kVector = Config::kVector;
  static constexpr bool kIsDot = Config::kScore == PairScore::kDot;  // edges add to values, too

 public:
  __device__ LaneEdgeRows(const Frame& frame, typename Base::Shared&)
      : Base(frame), first_(HeadVectors<1>(frame.args.layout, frame.work, 0).index[0] * kVector) {}

  template <int kEdges>
  struct Held {
    Row keys[kEdges];
    Row values[kIsDot ? kEdges : 1];

    template <int kWidth>
    __device__ void add_to_key(int u, int j, float (&key)[kWidth]) const {
      add_some(keys[u], j, key);
    }
    template <int kWidth>
    __device__ void add_to_value(int u, int j, float (&value)[kWidth]) const {
      if constexpr (kIsDot) add_some(values[u], j, value);
    }
    __device__ void add_to_key(int u, float (&key)[kVector]) const { keys[u].add_to(key); }
    __device__ void widen_key(int u, float (&key)[kVector]) const { keys[u].widen(key); }
    __device__ void add_to_value(int u, float (&value)[kVector]) const {
      if constexpr (kIsDot) values[u].add_to(value);
    }
    template <class Score>
    __device__ uint32_t signs(const Score& score, const Row& key, int u) const {
      float z[kVector];
      key.widen(z);
      add_to_key(u, z);
      return score.signs(z);
    }
  };

  template <class Batch, class Rows>
  __device__ void load(const Batch& batch, Rows& rows) const {
    uint64_t at[Batch::kEdges];
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) at[u] = element_of(batch, u);
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) rows.edges.keys[u] = load_row(terms().key, at[u]);
    if constexpr (kIsDot) {
      const bool is_one_row = terms().key == terms().value;
#pragma unroll
      for (int u = 0; u < Batch::kEdges; ++u) {
        rows.edges.values[u] = is_one_row ? rows.edges.keys[u] : load_row(terms().value, at[u]);
      }
    }
  }

  // Values have not been handed out: they are not summed up.
  template <class Owned, class Factors>
  __device__ void hand_out(const Owned& owned, Factors& factors) const {
    frame_.hand_out(owned, factors.value);
  }
  // products: of GATv2, whose rows of edges are in the gradient of attn.
  template <class Batch, class OwnRow, class Rows, class Factors, class Products>
  __device__ void store_gradients(const Batch& batch, const OwnRow& own, const Rows& rows, const Factors& factors,
                                  Products& products) const {
    float product[kVector] = {};
    const bool writes = frame_.work.exists(frame_.args.layout) && own.exists();
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) {
      const uint64_t at = element_of(batch, u);
      float of_key[kVector];
      own.score().edge_gradient(frame_.args, factors.key[u], rows, u, of_key, product);
      if (!writes || !batch.has(frame_.place(batch, u))) continue;
      if constexpr (kIsDot) store_value_gradient(own, factors.value[u], at, of_key);
      if (terms().grad_key != nullptr) store_rounded(static_cast<T*>(terms().grad_key) + at, of_key);
    }
    if constexpr (Config::kHasEdgeProducts) products.add_edges(product);
  }

 private:
  // Where the lane's vector of edge u of its group starts.
  template <class Batch>
  __device__ uint64_t element_of(const Batch& batch, int u) const {
    return static_cast<uint64_t>(edge_at(batch, frame_.place(batch, u))) * frame_.args.row_elements + first_;
  }
  // Adds it to of_key where one row is key and value.
  template <class OwnRow>
  __device__ void store_value_gradient(const OwnRow& own, float factor, uint64_t at, float (&of_key)[kVector]) const {
    const bool is_one_row = terms().grad_value == nullptr && terms().key == terms().value;
    float of_value[kVector];
    own.value().widen(of_value);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      of_value[i] *= factor;
      of_key[i] += is_one_row ? of_value[i] : 0.f;
    }
    if (terms().grad_value != nullptr) store_rounded(static_cast<T*>(terms().grad_value) + at, of_value);
  }
  static __device__ Row load_row(const void* rows, uint64_t at) {
    Row row{};
    if (rows != nullptr) row = Row::load_streaming(static_cast<const T*>(rows) + at);
    return row;
  }

  const uint32_t first_;  // of the lane's vector in a row
};

}  // namespace halfgnn::cuda
