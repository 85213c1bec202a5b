// int32 and int64 ids behind one type, so that kernels are compiled once for both. The branch is the same for all lanes
// and taken once for 32 edges.
#pragma once

#include "launch.cuh"

namespace halfgnn::cuda {

struct Ids {
  const void* data;
  bool is_int64;

  // Entry i of an indptr.
  __device__ int64_t offset(int64_t i) const {
    return is_int64 ? __ldg(static_cast<const int64_t*>(data) + i) : __ldg(static_cast<const int32_t*>(data) + i);
  }
  // The i-th node or edge id, below 2^32. Read once, so it does not stay in the caches. Without data ids are positions:
  // edge data that is stored in this order.
  __device__ uint32_t id(int64_t i) const {
    if (data == nullptr) return static_cast<uint32_t>(i);
    // The low word of an int64 comes first: one load serves both types.
    const char* low_word = static_cast<const char*>(data) + i * (is_int64 ? 8 : 4);
    return __ldcs(reinterpret_cast<const unsigned int*>(low_word));
  }
  // id() in place of each, with one branch for all.
  template <int kCount>
  __device__ void look_up(uint32_t (&positions)[kCount]) const {
    if (data == nullptr) return;
#pragma unroll
    for (int k = 0; k < kCount; ++k) positions[k] = id(positions[k]);
  }
};

// The factor of the gradient of a mean: 1 / the number of edges of a row of `indptr`, 1 for a row without edges.
struct InverseDegrees {
  Ids indptr;  // without data: there is no factor

  __host__ __device__ bool exists() const { return indptr.data != nullptr; }
  __device__ float of(uint32_t row) const {
    const auto begin = static_cast<uint32_t>(indptr.offset(row));
    const uint32_t degree = static_cast<uint32_t>(indptr.offset(int64_t{row} + 1)) - begin;
    return __frcp_rn(static_cast<float>(degree > 1 ? degree : 1));
  }
};

inline InverseDegrees inverse_degrees_of(const void* mean_indptr, const Topology& topology) {
  return {{mean_indptr, topology.is_int64}};
}

// Without edges there is nothing to read: ids are positions that nobody follows.
inline Ids indices_of(const Topology& topology) {
  return {topology.num_edges > 0 ? topology.indices : nullptr, topology.is_int64};
}
inline Ids edge_ids_of(const Topology& topology) {
  return {topology.num_edges > 0 ? topology.edge_ids : nullptr, topology.is_int64};
}

}  // namespace halfgnn::cuda
