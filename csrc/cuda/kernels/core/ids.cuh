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
    if (is_int64) return static_cast<uint32_t>(__ldcs(static_cast<const long long*>(data) + i));
    return static_cast<uint32_t>(__ldcs(static_cast<const int*>(data) + i));
  }
};

inline Ids indices_of(const Topology& topology) { return {topology.indices, topology.is_int64}; }
inline Ids edge_ids_of(const Topology& topology) { return {topology.edge_ids, topology.is_int64}; }

}  // namespace halfgnn::cuda
