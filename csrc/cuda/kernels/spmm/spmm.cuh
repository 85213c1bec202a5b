// What the kernels behind spmm.h share: how rows of features are gathered.
//
// The words are those of rows.cuh. Vectors have kVector elements, the largest access that alignment allows. A group of
// 2^log2_lanes lanes owns a slice of the row, each lane kRepeat vectors of it. How rows are shared among groups says
// row_teams.cuh.
#pragma once

#include <cfloat>
#include <type_traits>

#include "../core/alignment.h"
#include "../core/row_teams.cuh"
#include "../core/scalar.cuh"
#include "../plan/lanes.h"

namespace halfgnn::cuda {

// Blocks are small because a block keeps its place until its longest piece is done.
constexpr int kGatherThreads = 128;
// At most 64 registers per lane: 32 warps on a multiprocessor. Before sm_80 some of what a warp shares takes registers
// of every lane (see warp_max).
constexpr int kGatherMinBlocks = kCompiledArch < 800 ? 7 : 8;

template <typename T, int kVectorElements, int kVectorsPerLane>
struct GatherConfig {
  using Element = T;
  static constexpr int kVector = kVectorElements;
  static constexpr int kRepeat = kVectorsPerLane;
  // Edges whose rows a lane has in flight at once: 64 bytes per lane, or 4 to 8 narrow loads.
  static constexpr int kUnroll = kRepeat >= 4 ? 2 : 4;
  static constexpr int kVectorBytes = kVector * static_cast<int>(sizeof(T));
  static_assert(kVectorBytes <= kMaxAccessBytes && (kVector & (kVector - 1)) == 0, "one access");
};

struct Gather {
  TeamUnits units;
  Ids feat_rows;  // the row of feat that each position reads
  const void* feat;
  int32_t num_vectors;  // of a whole row
  uint32_t row_bytes;
  uint32_t unit_blocks;  // blocks that cover all units, for one slice
  uint32_t first_slice;  // of a launch that leaves out the slices before it

  // The unit of this warp, for its slice.
  __device__ uint32_t unit() const {
    return blockIdx.x % unit_blocks * (blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
  }
};

// Whether rows of so many elements, of at most four bytes, can be gathered.
constexpr bool fits_gather(int64_t len) { return len <= INT32_MAX / 2 / static_cast<int64_t>(sizeof(float)); }
// What a launcher knows of a gather, and how it is to be done.
struct GatherShape {
  const void* feat;
  int64_t feat_rows;
  int64_t row_bytes;
  bool by_edge;          // of edge data: every row is read once
  int64_t stream_bytes;  // per edge, beside features: ids and weights
  RowWork work;
  int64_t once_bytes = 0;  // per edge, beside these: rows of edge data, of which every slice reads or writes its part
  Reordering reordering = {};
};
// Of a position that reads edge data: its column, and its edge if there are edge ids.
inline int64_t ids_bytes(const Topology& topology) {
  return (topology.is_int64 ? 8 : 4) * (topology.edge_ids != nullptr ? 2 : 1);
}
struct GatherPlan {
  Gather gather;
  int64_t blocks;
  int threads;
  bool reorders;  // weights, in the first slice
};
// For accesses of vector_bytes. Looks at sizes alone.
GatherPlan plan_gather(const Topology& topology, const GatherShape& shape, int vector_bytes, int repeat, int unroll);

template <class Config>
GatherPlan plan_gather(const Topology& topology, const GatherShape& shape) {
  return plan_gather(topology, shape, Config::kVectorBytes, Config::kRepeat, Config::kUnroll);
}

// The slice of a row of features that a lane owns: vectors first, first + stride, ... of it. A lane that has fewer than
// kRepeat vectors, because the row ends, reads the last vector of the row again instead: loads without conditions stay
// in flight together, and its results are not stored.
template <class Config>
struct LaneSlice {
  int first;
  int stride;

  // Slices are the slowest part of the block index: all pieces for one slice before the next, so that a slice of feat
  // that fits in the L2 cache is swept while it is there.
  __device__ LaneSlice(const Gather& gather, int lane)
      : first(static_cast<int>((blockIdx.x / gather.unit_blocks * Config::kRepeat) << gather.units.layout.log2_lanes) +
              (lane & ((1 << gather.units.layout.log2_lanes) - 1))),
        stride(1 << gather.units.layout.log2_lanes) {}
  __device__ bool has(int r, const Gather& gather) const { return first + r * stride < gather.num_vectors; }
  // The r-th vector that the lane reads.
  __device__ int vector(int r, const Gather& gather) const {
    return has(r, gather) ? first + r * stride : gather.num_vectors - 1;
  }
};

// The addresses of a lane's kRepeat elements or vectors of row 0 of an array. Those after the first are kept as their
// distance from it, which takes half the registers.
template <int kRepeat>
struct LaneSource {
  const char* first;
  uint32_t distance[kRepeat];

  // The first of them in another row, of row_bytes, and the r-th.
  __device__ const char* of_row(uint32_t row, uint32_t row_bytes) const { return first + uint64_t{row} * row_bytes; }
  __device__ const char* at(const char* of_row, int r) const { return r == 0 ? of_row : of_row + distance[r]; }
};

// Of a lane's vectors, of vector_bytes each, in an array whose rows have as many vectors as those that are gathered.
template <class Config>
__device__ LaneSource<Config::kRepeat> source_of(const void* data, int vector_bytes, const Gather& gather,
                                                 const LaneSlice<Config>& slice) {
  LaneSource<Config::kRepeat> source{};
  const int first = slice.vector(0, gather);
  source.first = static_cast<const char*>(data) + int64_t{first} * vector_bytes;
#pragma unroll
  for (int r = 1; r < Config::kRepeat; ++r) {
    source.distance[r] = static_cast<uint32_t>((slice.vector(r, gather) - first) * vector_bytes);
  }
  source.first = as_computed(source.first);
  return source;
}
template <class Config>
__device__ LaneSource<Config::kRepeat> feat_source(const Gather& gather, const LaneSlice<Config>& slice) {
  return source_of<Config>(gather.feat, Config::kVectorBytes, gather, slice);
}

// ---- Which instantiation is launched.

// f(Type<T>{}) or f(Type<float>{})
template <typename T, class F>
cudaError_t with_float_or(DType type, const F& f) {
  if constexpr (!std::is_same_v<T, float>) {
    if (type != DType::kFloat) return f(Type<T>{});
  }
  return f(Type<float>{});
}

// f(Type<E>{}) for the type E of an operand beside one of T: T, fp32 beside halves, or either half type beside fp32.
template <typename T, class F>
cudaError_t with_partner_type(DType type, const F& f) {
  if constexpr (std::is_same_v<T, float>) {
    return with_type(type, f);
  } else {
    return with_float_or<T>(type, f);
  }
}

// f(elements of an access as a constant, accesses per lane as a constant): the widest that fits(elements), for rows of
// which a lane reads elements of at most kBytes. Where types differ there are two widths, otherwise three.
template <int kBytes, bool kSameTypes, class Fits, class F>
cudaError_t with_fitting_vector(const Fits& fits, const F& f) {
  constexpr int kWidest = kMaxAccessBytes / kBytes;
  using One = std::integral_constant<int, 1>;
  if (fits(kWidest)) return f(std::integral_constant<int, kWidest>{}, One{});
  if constexpr (kSameTypes) {
    if (fits(kWidest / 2)) return f(std::integral_constant<int, kWidest / 2>{}, std::integral_constant<int, 2>{});
  }
  return f(One{}, std::integral_constant<int, 4>{});
}

// ---- What is done with a lane's sums.

// A quotient rounded correctly: its error by the reciprocal of the divisor is worked out and taken off.
inline __device__ float divide(float value, float divisor, float reciprocal) {
  const float near = value * reciprocal;
  const float exact = fmaf(fmaf(-near, divisor, value), reciprocal, near);
  return fabsf(exact) <= FLT_MAX ? exact : near;  // of inf the error is nan
}

// Rounds them and writes them to a line of `out`, if the lane writes.
template <class Config, typename T>
__device__ void store_sums(T* out, uint32_t line, bool writes, const Gather& gather, const LaneSlice<Config>& slice,
                           const float (&sums)[Config::kRepeat][Config::kVector]) {
  const auto row_bytes = static_cast<uint32_t>(gather.num_vectors * Config::kVector * sizeof(T));
  char* target = reinterpret_cast<char*>(out + slice.first * Config::kVector) + uint64_t{line} * row_bytes;
#pragma unroll
  for (int r = 0; r < Config::kRepeat; ++r) {
    if (writes && slice.has(r, gather)) {
      store_rounded(reinterpret_cast<T*>(target) + r * slice.stride * Config::kVector, sums[r]);
    }
  }
}

}  // namespace halfgnn::cuda
