// The kernel behind sddmm_dot. Include only where it is instantiated (sddmm_dot_<type>.cu).
//
// A unit is some consecutive positions, which a warp walks 32 at a time, whatever rows they belong to. So work is
// balanced whatever the degrees are, and no partial results are left. A batch of edges that share a row reads that row
// once; otherwise each edge reads its own, which the first-level cache mostly has.
#pragma once

#include "../core/alignment.h"
#include "../core/heads.cuh"
#include "../core/rows.cuh"
#include "../plan/device.h"
#include "../plan/heads.h"
#include "../plan/units.h"
#include "sddmm_dot.h"

namespace halfgnn::cuda {

template <typename T, int kVectorElements, int kEdgesAGroup>
struct DotConfig {
  using Element = T;
  static constexpr int kVector = kVectorElements;
  static constexpr int kVectorBytes = kVector * static_cast<int>(sizeof(T));
  // Four registers per edge, whatever the access.
  static constexpr int kRepeat = kVectorBytes == 16 ? 1 : kVectorBytes == 8 ? 2 : 4;
  // Edges of a group in flight. A batch is at most the 32 edges whose ids a warp holds, so narrow rows take fewer.
  static constexpr int kUnroll = kEdgesAGroup;
  static constexpr int kMaxLog2Groups = kLog2Warp - log2_ceil(kUnroll);
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kWarpSize;
  // 8 edges take 32 registers of rows, 8 of widened row, 8 of dots and the addresses: 80.
  static constexpr int kMinBlocks = kVectorBytes == 2 ? 5 : (kUnroll == 8 || kRepeat == 4 ? 6 : 8) - kBlockLess;
};

struct DotKernelArgs {
  Rows rows;
  Ids other_ids;  // rows of `other`
  Ids edge_ids;
  bool other_by_edge;
  HeadLayout layout;
  const void* own;  // at the row
  const void* other;
  uint32_t row_bytes;
  InverseDegrees row_scale;  // if there is one, in place of `factor`
  float factor;
  void* out;
  bool out_is_float;
  int64_t num_units;
  int64_t unit_edges;  // a multiple of 32
};

// What the lanes of a warp hold about 32 positions.
struct DotIds {
  uint32_t other;
  uint32_t edge;

  // Past the last position, that one again.
  static __device__ DotIds load(const DotKernelArgs& args, int64_t position) {
    const int64_t read = position < args.rows.num_edges ? position : args.rows.num_edges - 1;
    DotIds ids;
    ids.edge = args.edge_ids.id(read);
    ids.other = args.other_by_edge ? ids.edge : args.other_ids.id(read);
    return ids;
  }
};

// Where a lane's vectors of row 0 are, for one tile.
template <class Config>
struct DotTile {
  const char* own[Config::kRepeat];
  const char* other[Config::kRepeat];
  int count;  // of the vectors that enter dots

  __device__ DotTile(const DotKernelArgs& args, const HeadLane& work, int tile) {
    const HeadVectors<Config::kRepeat> vectors(args.layout, work, tile);
    count = vectors.count;
#pragma unroll
    for (int r = 0; r < Config::kRepeat; ++r) {
      own[r] = as_computed(static_cast<const char*>(args.own) + vectors.index[r] * Config::kVectorBytes);
      other[r] = as_computed(static_cast<const char*>(args.other) + vectors.index[r] * Config::kVectorBytes);
    }
  }
};

// dot[u] += this lane's part of the dots of the edges at places start + u * groups of the warp's 32, for u < kEdges.
// All loads are issued before the first product.
template <class Config, int kEdges, bool kSameRow>
__device__ void add_dots(const DotKernelArgs& args, const DotTile<Config>& tile, uint32_t other, uint32_t row,
                         int start, float* dot) {
  using Row = Fragment<typename Config::Element, Config::kVector>;
  constexpr int kRepeat = Config::kRepeat, kOwn = kSameRow ? 1 : kEdges;
  const int log2_groups = args.layout.log2_groups();
  Row own_rows[kOwn][kRepeat], rows[kEdges][kRepeat];
#pragma unroll
  for (int u = 0; u < kOwn; ++u) {
    const uint32_t at = __shfl_sync(kFullMask, row, start + (u << log2_groups));
#pragma unroll
    for (int r = 0; r < kRepeat; ++r)
      own_rows[u][r] = Row::load(tile.own[r] + static_cast<uint64_t>(at) * args.row_bytes);
  }
#pragma unroll
  for (int u = 0; u < kEdges; ++u) {
    const uint32_t at = __shfl_sync(kFullMask, other, start + (u << log2_groups));
#pragma unroll
    for (int r = 0; r < kRepeat; ++r)
      rows[u][r] = Row::load(tile.other[r] + static_cast<uint64_t>(at) * args.row_bytes);
  }
#pragma unroll
  for (int r = 0; r < kRepeat; ++r) {
    if (r < tile.count) {  // lanes part here, but no load waits for it
      float own[Config::kVector];
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        if (u < kOwn) own_rows[u < kOwn ? u : 0][r].widen(own);
        dot[u] = add_dot(own, rows[u][r], dot[u]);
      }
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) sddmm_dot_kernel(const DotKernelArgs args) {
  constexpr int kUnroll = Config::kUnroll;
  const HeadLayout& layout = args.layout;
  const int lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * Config::kWarps + threadIdx.x / kWarpSize;
  if (warp >= args.num_units * layout.slices) return;  // whole warps
  const auto slice = static_cast<int>(layout.by_slice ? warp / args.num_units : warp % layout.slices);
  const int64_t unit = layout.by_slice ? warp % args.num_units : warp / layout.slices;
  const int64_t begin = unit * args.unit_edges, past = begin + args.unit_edges;
  const int64_t end = past < args.rows.num_edges ? past : args.rows.num_edges;
  const HeadLane work(layout, slice, lane);
  DotTile<Config> tile(args, work, 0);
  const int batch = kUnroll << layout.log2_groups();

  DotIds next = DotIds::load(args, begin + lane);
  RowsOfEdges rows(args.rows, begin, lane);
  for (int64_t base = begin; base < end; base += kWarpSize) {
    const DotIds ids = next;
    next = DotIds::load(args, base + kWarpSize + lane);
    const auto row = static_cast<uint32_t>(rows.next(base));
    const float scale = args.row_scale.exists() ? args.row_scale.of(row) : args.factor;
    const int count = static_cast<int>(end - base < kWarpSize ? end - base : kWarpSize);
    for (int start = 0; start < count; start += batch) {
      float dot[kUnroll] = {};
      const bool same_row = __shfl_sync(kFullMask, row, start) == __shfl_sync(kFullMask, row, start + batch - 1);
      const int first = start + work.group;
      for (int t = 0; t < layout.tiles; ++t) {
        if (layout.tiles > 1) tile = DotTile<Config>(args, work, t);
        if (same_row) {
          add_dots<Config, kUnroll, true>(args, tile, ids.other, row, first, dot);
        } else {
          // Twice the registers per edge, so half the edges at a time.
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            constexpr int kHalf = kUnroll / 2;
            add_dots<Config, kHalf, false>(args, tile, ids.other, row, first + (half * kHalf << layout.log2_groups()),
                                           dot + half * kHalf);
          }
        }
      }
      sum_over_head(dot, layout.log2_lanes, lane);
      for_each_owned<kUnroll>(layout, work, [&](int i, int place, bool writes) {
        const uint32_t edge = __shfl_sync(kFullMask, ids.edge, start + place);
        const float times = __shfl_sync(kFullMask, scale, start + place);
        if (writes && start + place < count) {
          const uint64_t at = static_cast<uint64_t>(edge) * static_cast<uint32_t>(layout.heads) + work.head;
          store_result<typename Config::Element>(args.out, args.out_is_float, at, dot[i] * times);
        }
      });
    }
  }
}

template <class Config>
cudaError_t launch_sddmm_dot(DotKernelArgs args, int64_t heads, int64_t dim, int64_t other_rows, cudaStream_t stream) {
  const Gathered gathered{other_rows, args.row_bytes, args.rows.num_edges};
  const HeadShape shape{heads, dim / Config::kVector, Config::kRepeat, Config::kMaxLog2Groups};
  const Device device = current_device();
  args.layout = layout_of_whole_heads(device, shape, gathered, args.rows.num_rows, kDotWork);
  args.unit_edges = dot_unit_edges(device, args.rows.num_edges, args.layout.slices);
  args.num_units = ceil_div(args.rows.num_edges, args.unit_edges);
  const int64_t blocks = ceil_div(args.num_units * args.layout.slices, Config::kWarps);
  return launch(sddmm_dot_kernel<Config>, blocks, Config::kThreads, stream, args);
}

// Of the kernels of full accesses, the one that takes more edges at once is for narrow rows.
template <typename T, int kVector>
cudaError_t launch_sddmm_dot(const DotKernelArgs& args, int64_t heads, int64_t dim, int64_t other_rows,
                             cudaStream_t stream) {
  using Other = DotConfig<T, kVector, 4>;
  if constexpr (Other::kVectorBytes == kMaxAccessBytes) {
    using Wide = DotConfig<T, kVector, 8>;
    using Narrow = DotConfig<T, kVector, 2>;
    const int log2_lanes = log2_ceil(dim / kVector) + log2_ceil(heads);
    return log2_lanes + Wide::kMaxLog2Groups >= kLog2Warp
               ? launch_sddmm_dot<Wide>(args, heads, dim, other_rows, stream)
               : launch_sddmm_dot<Narrow>(args, heads, dim, other_rows, stream);
  } else {
    return launch_sddmm_dot<Other>(args, heads, dim, other_rows, stream);
  }
}

template <typename T>
cudaError_t sddmm_dot_of(const SddmmArgs& args, float factor, const Launch& launch) {
  const bool lhs_is_own = args.lhs.target == Target::kRow;
  const Operand &own = lhs_is_own ? args.lhs : args.rhs, &other = lhs_is_own ? args.rhs : args.lhs;
  const int64_t heads = args.broadcast.outer, dim = args.broadcast.inner;
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  if (args.topology.num_edges == 0 || heads == 0) return cudaSuccess;
  if (heads < 0 || heads > most || dim <= 0 || dim > most / static_cast<int64_t>(sizeof(T)) / heads) {
    return cudaErrorInvalidValue;
  }
  if (args.out_type != args.lhs.type && args.out_type != DType::kFloat) return cudaErrorInvalidValue;

  DotKernelArgs kernel{};
  kernel.rows = rows_of(args.topology);
  kernel.other_ids = indices_of(args.topology);
  kernel.edge_ids = edge_ids_of(args.topology);
  kernel.other_by_edge = other.target == Target::kEdge;
  kernel.own = own.data;
  kernel.other = other.data;
  kernel.row_bytes = static_cast<uint32_t>(heads * dim * static_cast<int64_t>(sizeof(T)));
  kernel.row_scale = inverse_degrees_of(args.mean_indptr, args.topology);
  kernel.factor = factor;
  kernel.out = args.out;
  kernel.out_is_float = args.out_type == DType::kFloat;

  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  const auto fits = [&](int vector) {
    return dim % vector == 0 && are_aligned(vector * static_cast<int64_t>(sizeof(T)), own.data, other.data);
  };
  if (fits(widest)) return launch_sddmm_dot<T, widest>(kernel, heads, dim, other.rows, launch.stream);
  if (fits(widest / 2)) return launch_sddmm_dot<T, widest / 2>(kernel, heads, dim, other.rows, launch.stream);
  if constexpr (widest == 8) {
    if (fits(2)) return launch_sddmm_dot<T, 2>(kernel, heads, dim, other.rows, launch.stream);
  }
  return launch_sddmm_dot<T, 1>(kernel, heads, dim, other.rows, launch.stream);
}

}  // namespace halfgnn::cuda
