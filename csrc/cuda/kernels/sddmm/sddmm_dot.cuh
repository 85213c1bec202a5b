// The kernel behind sddmm_dot. Include only where it is instantiated (sddmm_dot_<type>.cu).
//
// A unit is some consecutive positions, which a warp walks 32 at a time, whatever rows they belong to. So work is
// balanced whatever the degrees are, and no partial results are left. A batch of edges that share a row reads that row
// once; otherwise each edge reads its own, which the first-level cache mostly has.
#pragma once

#include "../core/alignment.h"
#include "../core/heads.cuh"
#include "../core/rows.cuh"
#include "../core/uniform.cuh"
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

// What a lane holds of an edge.
struct DotEdge {
  uint32_t row;
  uint32_t other;
  uint32_t id;
};

// What a lane does with the positions of a unit.
template <class Config>
class DotLane {
  using T = typename Config::Element;
  using Row = Fragment<T, Config::kVector>;
  static constexpr int kRepeat = Config::kRepeat;
  static constexpr int kUnroll = Config::kUnroll;

 public:
  __device__ DotLane(const DotKernelArgs& args, int slice)
      : args_(args),
        lane_(static_cast<int>(threadIdx.x & (kWarpSize - 1))),
        work_(args.layout, slice, lane_),
        place_(as_computed(work_.group * kUnroll + (lane_ & (kUnroll - 1)))) {
    start_tile(0);
  }

  // The whole warp takes part, with positions begin ... begin + num_edges - 1.
  __device__ void walk(int64_t begin, int num_edges) {
    const int batch = kUnroll << args_.layout.log2_groups();
    RowsOfEdges rows(args_.rows, begin, lane_);
    int64_t row_end = 0;    // of the last row, once it is known
    DotEdge next{0, 0, 0};  // of lanes past the last edge: rows 0, which exist
    load_ids(next, begin, num_edges);
    for (int left = num_edges; left > 0; left -= kWarpSize, begin += kWarpSize) {
      DotEdge edge = next;
      load_ids(next, begin + kWarpSize, left - kWarpSize);
      edge.row = static_cast<uint32_t>(rows.last());
      if (begin + kWarpSize > row_end) {  // not all of one row
        edge.row = static_cast<uint32_t>(rows.next(begin));
        row_end = args_.rows.indptr.offset(rows.last() + 1);
      }
      const int count = left < kWarpSize ? left : kWarpSize;
      for (int start = 0; start < count; start += batch) {
        const int holder = start + place_;
        const DotEdge own{__shfl_sync(kFullMask, edge.row, holder), __shfl_sync(kFullMask, edge.other, holder),
                          __shfl_sync(kFullMask, edge.id, holder)};
        add_batch(own, holder < count);
      }
    }
  }

 private:
  // Of the lane's position from `first` on, if it is one of `count`.
  __device__ void load_ids(DotEdge& edge, int64_t first, int count) const {
    if (lane_ >= count) return;
    edge.id = args_.edge_ids.id(first + lane_);
    edge.other = args_.other_by_edge ? edge.id : args_.other_ids.id(first + lane_);
  }

  // Where the lane's vectors of row 0 are, and how many of them enter dots.
  __device__ void start_tile(int tile) {
    const HeadVectors<kRepeat> vectors(args_.layout, work_, tile);
    num_vectors_ = vectors.count;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      const uint32_t at = vectors.index[r] * static_cast<uint32_t>(Config::kVectorBytes);
      own_[r] = as_computed(static_cast<const char*>(args_.own) + at);
      other_[r] = as_computed(static_cast<const char*>(args_.other) + at);
    }
  }

  // A group has kUnroll edges of a batch and at least as many lanes. Edge u is known to its lanes whose number ends in
  // u, and the sum of its dot will be theirs: `edge`, which is one of the batch's if it exists.
  __device__ void add_batch(const DotEdge& edge, bool exists) {
    const bool same_row = __all_sync(kFullMask, edge.row == __shfl_sync(kFullMask, edge.row, 0));
    float dot[kUnroll] = {};
    int tile = 0;
    do {
      if (args_.layout.tiles > 1) start_tile(tile);
      if (same_row) {
        add_dots<0, kUnroll, true>(edge, dot);
      } else {  // twice the registers per edge, so half the edges at a time
        add_dots<0, kUnroll / 2, false>(edge, dot);
        add_dots<kUnroll / 2, kUnroll / 2, false>(edge, dot);
      }
    } while (++tile < args_.layout.tiles);
    sum_over_head(dot, args_.layout.log2_lanes, lane_);
    const float factor = args_.row_scale.exists() ? args_.row_scale.of(edge.row) : args_.factor;
    if (args_.layout.log2_lanes >= log2_ceil(kUnroll)) {
      store(edge.id, dot[0] * factor, exists && work_.own < kUnroll);
    } else {  // several edges a lane
      for_each_owned_value<kUnroll>(args_.layout, work_, [&](int i, int u, bool writes) {
        const float times = __shfl_sync(kFullMask, factor, u, kUnroll);
        const bool has = __shfl_sync(kFullMask, static_cast<int>(exists), u, kUnroll) != 0;
        store(__shfl_sync(kFullMask, edge.id, u, kUnroll), dot[i] * times, has && writes);
      });
    }
  }
  __device__ void store(uint32_t id, float value, bool writes) const {
    if (!writes || !work_.exists(args_.layout)) return;
    const uint64_t at = wide_product(id, static_cast<uint32_t>(args_.layout.heads)) + static_cast<uint32_t>(work_.head);
    store_result<T>(args_.out, args_.out_is_float, at, value);
  }

  // dot[u] += this lane's part of the dot of edge u of its group, for kEdges of them from kFirst on. All loads are
  // issued before the first product.
  template <int kFirst, int kEdges, bool kSameRow>
  __device__ void add_dots(const DotEdge& edge, float (&dot)[kUnroll]) const {
    constexpr int kOwn = kSameRow ? 1 : kEdges;
    Row own_rows[kOwn][kRepeat], rows[kEdges][kRepeat];
#pragma unroll
    for (int u = 0; u < kOwn; ++u) load_row(own_rows[u], own_, edge.row, kFirst + u);
#pragma unroll
    for (int u = 0; u < kEdges; ++u) load_row(rows[u], other_, edge.other, kFirst + u);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      if (r < num_vectors_) {  // lanes part here, but no load waits for it
        float own[Config::kVector];
#pragma unroll
        for (int u = 0; u < kEdges; ++u) {
          if (u < kOwn) own_rows[u < kOwn ? u : 0][r].widen(own);
          dot[kFirst + u] = add_dot(own, rows[u][r], dot[kFirst + u]);
        }
      }
    }
  }
  // Of edge u of the lane's group.
  __device__ void load_row(Row (&row)[kRepeat], const char* const (&first)[kRepeat], uint32_t node, int u) const {
    const uint32_t at = __shfl_sync(kFullMask, node, u, kUnroll);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) row[r] = Row::load(first[r] + wide_product(at, args_.row_bytes));
  }

  const DotKernelArgs& args_;
  const int lane_;
  const HeadLane work_;
  const int place_;  // in a batch, of the edge that the lane knows
  int num_vectors_;
  const char* own_[kRepeat];
  const char* other_[kRepeat];
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) sddmm_dot_kernel(const DotKernelArgs args) {
  const HeadLayout& layout = args.layout;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * Config::kWarps + uniform(threadIdx.x / kWarpSize);
  if (warp >= args.num_units * layout.slices) return;  // whole warps
  const auto slice = static_cast<int>(layout.by_slice ? warp / args.num_units : warp % layout.slices);
  const int64_t unit = layout.by_slice ? warp % args.num_units : warp / layout.slices;
  const int64_t begin = unit * args.unit_edges, rest = args.rows.num_edges - begin;
  const int num_edges = as_computed(static_cast<int>(rest < args.unit_edges ? rest : args.unit_edges));
  DotLane<Config>(args, slice).walk(begin, num_edges);
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
