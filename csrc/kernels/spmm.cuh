// The kernels behind spmm.h. Include only where they are instantiated (spmm_<type>.cu).
//
// Terms. A row of features is cut into vectors of kVector elements, the largest access that
// alignment allows. A group of 2^k lanes owns a slice of the row, each lane kRepeat vectors of it.
// The warp's 32 / 2^k groups take different edges of the same row, and are summed at the end.
#pragma once

#include <limits>

#include "launch.cuh"
#include "spmm.h"
#include "vector.cuh"

namespace halfgnn::cuda {

template <typename T, int kVectorElements, int kVectorsPerLane>
struct SpmmConfig {
  using Element = T;
  static constexpr int kVector = kVectorElements;
  static constexpr int kRepeat = kVectorsPerLane;
  // Edges whose rows a lane has in flight at once: 64 bytes a lane, or 4 to 8 narrow loads.
  static constexpr int kUnroll = kRepeat >= 4 ? 2 : 4;
  // Blocks are small because a block keeps its place until its longest row is done.
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kWarpSize;
  // At most 64 registers a lane: 32 warps on a multiprocessor.
  static constexpr int kMinBlocks = 8;

  static constexpr int kVectorBytes = kVector * static_cast<int>(sizeof(T));
  static_assert(kVectorBytes <= kMaxAccessBytes && (kVector & (kVector - 1)) == 0, "one access");
};

template <typename T, typename Out, typename Index>
struct SpmmArgs {
  const Index* indptr;
  const Index* indices;
  const T* lhs;
  Out* out;
  int64_t num_dst;
  int32_t num_vectors;  // of a whole row
  int32_t log2_lanes;   // of a group
  uint32_t row_blocks;  // blocks that cover all rows, for one slice
};

// What one lane does: `group` of `num_groups`, and the vectors first, first + stride, ... of a row.
// Of the row that starts at lhs they are at `source`. A lane that has fewer than kRepeat vectors,
// because the row ends, reads the last vector of the row again instead: loads without conditions
// stay in flight together, and its sums are not stored.
template <class Config>
struct LaneWork {
  int group;
  int num_groups;
  int first;  // vector of the row
  int stride;
  int repeats;  // how many of its vectors exist
  const char* source[Config::kRepeat];

  __device__ LaneWork(const void* lhs, int lane, int log2_lanes, int slice, int num_vectors)
      : group(lane >> log2_lanes),
        num_groups(kWarpSize >> log2_lanes),
        first(((slice * Config::kRepeat) << log2_lanes) + (lane & ((1 << log2_lanes) - 1))),
        stride(1 << log2_lanes),
        repeats(0) {
#pragma unroll
    for (int r = 0; r < Config::kRepeat; ++r) {
      const int vector = first + r * stride;
      repeats += vector < num_vectors;
      const int64_t read = vector < num_vectors ? vector : num_vectors - 1;
      source[r] = static_cast<const char*>(lhs) + read * Config::kVectorBytes;
    }
  }
};

// Where row `index` starts. Unsigned, so that with int32 indices an address is one multiply-add.
inline __device__ uint64_t row_offset(int32_t index, uint32_t row_bytes) {
  return static_cast<uint64_t>(static_cast<uint32_t>(index)) * row_bytes;
}
inline __device__ uint64_t row_offset(int64_t index, uint32_t row_bytes) {
  return static_cast<uint64_t>(index) * row_bytes;
}

// sum += the lane's vectors of up to kEdges x num_groups rows: those that edges start ... count - 1
// of the warp's indices name. All loads are issued before the first addition. If the batch is not
// kFull, a place past the last edge reads the last edge's row again and adds 0.
template <class Config, int kEdges, bool kFull, typename Index>
__device__ void add_batch(const LaneWork<Config>& work, uint32_t row_bytes, Index indices, int start, int count,
                          float (&sum)[Config::kRepeat][Config::kVector]) {
  using Row = Fragment<typename Config::Element, Config::kVector>;
  Row rows[kEdges][Config::kRepeat];
#pragma unroll
  for (int u = 0; u < kEdges; ++u) {
    const int edge = start + u * work.num_groups + work.group;
    const Index src = __shfl_sync(kFullMask, indices, kFull || edge < count ? edge : count - 1);
    const uint64_t offset = row_offset(src, row_bytes);
#pragma unroll
    for (int r = 0; r < Config::kRepeat; ++r) rows[u][r] = Row::load(work.source[r] + offset);
  }
#pragma unroll
  for (int u = 0; u < kEdges; ++u) {
    const int edge = start + u * work.num_groups + work.group;
#pragma unroll
    for (int r = 0; r < Config::kRepeat; ++r) {
      if constexpr (!kFull) rows[u][r].keep_if(edge < count);
      rows[u][r].add_to(sum[r]);
    }
  }
}

// sum += the lane's vectors of the rows that edges [begin, end) name. The whole warp takes part,
// with one edge range, and a group takes every num_groups-th edge of it. Indices are read once,
// coalesced, 32 at a time and one step ahead of their use, and handed out by shuffle.
template <class Config, typename Out, typename Index>
__device__ void add_edges(const SpmmArgs<typename Config::Element, Out, Index>& args, const LaneWork<Config>& work,
                          int lane, int64_t begin, int64_t end, float (&sum)[Config::kRepeat][Config::kVector]) {
  constexpr int kUnroll = Config::kUnroll;
  const uint32_t row_bytes = static_cast<uint32_t>(args.num_vectors) * Config::kVectorBytes;

  Index next = begin + lane < end ? __ldcs(args.indices + begin + lane) : Index{0};
  for (int64_t chunk = begin; chunk < end; chunk += kWarpSize) {
    const Index indices = next;
    const int64_t ahead = chunk + kWarpSize + lane;
    next = ahead < end ? __ldcs(args.indices + ahead) : Index{0};

    const int count = static_cast<int>(end - chunk < kWarpSize ? end - chunk : kWarpSize);
    int start = 0;
    for (; start + kUnroll * work.num_groups <= count; start += kUnroll * work.num_groups) {
      add_batch<Config, kUnroll, true>(work, row_bytes, indices, start, count, sum);
    }
    if (start + work.num_groups < count) {
      add_batch<Config, kUnroll, false>(work, row_bytes, indices, start, count, sum);
    } else if (start < count) {  // one edge a group: short rows, and narrow ones
      add_batch<Config, 1, false>(work, row_bytes, indices, start, count, sum);
    }
  }
}

// Adds the partial sums of all groups, in a fixed order; every group ends up with the total.
template <int kRepeat, int kVector>
__device__ void sum_over_groups(int log2_lanes, float (&sum)[kRepeat][kVector]) {
  for (int distance = 1 << log2_lanes; distance < kWarpSize; distance *= 2) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sum[r][i] += __shfl_xor_sync(kFullMask, sum[r][i], distance);
      }
    }
  }
}

// Slices are the slowest part of the block index: all rows of one slice before the next, so that a
// slice of lhs that fits in the L2 cache is swept while it is there.
template <class Config, typename Out, typename Index>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    spmm_copy_lhs_sum_kernel(const SpmmArgs<typename Config::Element, Out, Index> args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int slice = static_cast<int>(blockIdx.x / args.row_blocks);
  const int64_t row = static_cast<int64_t>(blockIdx.x % args.row_blocks) * Config::kWarps + warp;
  if (row >= args.num_dst) return;  // whole warps

  const LaneWork<Config> work(args.lhs, lane, args.log2_lanes, slice, args.num_vectors);
  float sum[Config::kRepeat][Config::kVector] = {};
  add_edges<Config>(args, work, lane, __ldg(args.indptr + row), __ldg(args.indptr + row + 1), sum);
  sum_over_groups(args.log2_lanes, sum);

  if (work.group != 0) return;
  Out* out = args.out + (row * args.num_vectors + work.first) * Config::kVector;
#pragma unroll
  for (int r = 0; r < Config::kRepeat; ++r) {
    if (r < work.repeats) store_rounded(out + r * work.stride * Config::kVector, sum[r]);
  }
}

template <class Config, typename Out, typename Index>
cudaError_t launch_spmm(SpmmArgs<typename Config::Element, Out, Index> args, int64_t num_features,
                        cudaStream_t stream) {
  args.num_vectors = static_cast<int32_t>(num_features / Config::kVector);
  args.log2_lanes = 0;
  while ((Config::kRepeat << args.log2_lanes) < args.num_vectors && args.log2_lanes < 5) {
    ++args.log2_lanes;
  }
  const int64_t slices = ceil_div(args.num_vectors, Config::kRepeat << args.log2_lanes);
  const int64_t row_blocks = ceil_div(args.num_dst, Config::kWarps);
  args.row_blocks = static_cast<uint32_t>(row_blocks);  // more are refused by launch()
  return launch(spmm_copy_lhs_sum_kernel<Config, Out, Index>, slices * row_blocks, Config::kThreads, stream, args);
}

// Whether kCount elements can be one access: they divide the row, and both bases are aligned.
template <typename T, typename Out, int kCount>
bool fits_vector(const T* lhs, const Out* out, int64_t num_features) {
  return num_features % kCount == 0 && reinterpret_cast<uintptr_t>(lhs) % (kCount * sizeof(T)) == 0 &&
         reinterpret_cast<uintptr_t>(out) % kStoreAlignment<Out, kCount> == 0;
}

template <typename T, typename Out, typename Index>
cudaError_t spmm_copy_lhs_sum(const Index* indptr, const Index* indices, const T* lhs, Out* out, int64_t num_dst,
                              int64_t num_features, cudaStream_t stream) {
  constexpr int64_t max_features = std::numeric_limits<int32_t>::max() / sizeof(Out);
  if (num_dst < 0 || num_features < 0 || num_features > max_features) return cudaErrorInvalidValue;
  if (num_dst == 0 || num_features == 0) return cudaSuccess;

  const SpmmArgs<T, Out, Index> args{indptr, indices, lhs, out, num_dst, 0, 0, 0};
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  if (fits_vector<T, Out, widest>(lhs, out, num_features)) {
    return launch_spmm<SpmmConfig<T, widest, 1>>(args, num_features, stream);
  }
  if (fits_vector<T, Out, widest / 2>(lhs, out, num_features)) {
    return launch_spmm<SpmmConfig<T, widest / 2, 2>>(args, num_features, stream);
  }
  // Narrow accesses: where a row is more than a warp is wide, four of them a lane, so that indices
  // and addresses are not worked out again for every 64 or 128 bytes of a row.
  if constexpr (widest == 8) {
    if (fits_vector<T, Out, 2>(lhs, out, num_features)) {
      return num_features / 2 <= kWarpSize ? launch_spmm<SpmmConfig<T, 2, 1>>(args, num_features, stream)
                                           : launch_spmm<SpmmConfig<T, 2, 4>>(args, num_features, stream);
    }
  }
  return num_features <= kWarpSize ? launch_spmm<SpmmConfig<T, 1, 1>>(args, num_features, stream)
                                   : launch_spmm<SpmmConfig<T, 1, 4>>(args, num_features, stream);
}

#define HALFGNN_INSTANTIATE_SPMM(T, Out, Index)                                                                       \
  template cudaError_t spmm_copy_lhs_sum<T, Out, Index>(const Index*, const Index*, const T*, Out*, int64_t, int64_t, \
                                                        cudaStream_t)

}  // namespace halfgnn::cuda
