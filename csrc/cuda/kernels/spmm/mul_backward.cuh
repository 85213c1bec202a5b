// The kernel behind mul_backward. Include only where it is instantiated (mul_backward_<type>.cu).
//
// A warp takes a piece of a long row, or some consecutive short rows, whose ids then come in one stream. It holds the
// row of feat and gathers rows of grad, several edges in flight. Each gathered row serves twice: it is added to the
// row's sum, and it is a factor of the edge's dot. If a head is too wide for registers, the row is walked once per
// tile.
#pragma once

#include "../core/running_sum.cuh"
#include "mul_backward_launch.h"

namespace halfgnn::cuda {

// T: feat, grad_feat. G: grad.
template <typename T, typename G, int kVectorElements, int kVectorsPerLane>
struct MulConfig {
  using Feat = T;
  using Grad = G;
  static constexpr int kVector = kVectorElements;
  static constexpr int kRepeat = kVectorsPerLane;
  static constexpr int kElements = kRepeat * kVector;
  // Whether a head may have several tiles. If it would with one vector per lane, the host chooses four.
  static constexpr bool kTiles = kRepeat > 1;
  // Edges of a group in flight: 64 bytes per lane, 128 if rows are wide.
  static constexpr bool kIsWide = kElements * sizeof(G) > 32;
  static constexpr int kUnroll = kIsWide ? 2 : 4;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kWarpSize;
  // Registers hold those edges, the sums, the row of feat, and addresses: 80, 96 with two accesses per lane and row,
  // 112 to 160 with four.
  static constexpr int kMinBlocks = kRepeat == 1 ? 6 : kRepeat == 2 ? 5 : kIsWide ? 3 : 4;
};

struct MulKernelArgs {
  RowUnits units;
  Ids columns;
  Ids edge_ids;
  HeadLayout layout;
  const void* feat;
  const void* grad;
  const void* weight;
  bool weight_is_float;
  InverseDegrees scale;  // of the columns
  void* grad_feat;
  void* grad_weight;
  float* partial;
  float* dots;
  uint32_t row_elements;
  uint32_t weight_bytes;  // of an edge
  int64_t num_units;      // units.num_units, for arithmetic with the number of a warp
};

template <class Config>
class MulLane {
 public:
  using T = typename Config::Feat;
  using G = typename Config::Grad;
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;
  static constexpr int kUnroll = Config::kUnroll;
  using Own = Fragment<T, kVector>;
  using Row = Fragment<G, kVector>;

  __device__ MulLane(const MulKernelArgs& args, int slice, int lane)
      : args_(args), work_(args.layout, slice, lane), ids_{0, 0}, ids_begin_(~0u) {
    const int64_t offset = static_cast<int64_t>(work_.read(args.layout)) * (args.weight_bytes / args.layout.heads);
    weight_ = as_computed(static_cast<const char*>(args.weight) + offset);
  }

  // The whole warp takes part, with one piece.
  __device__ void run(const Piece& piece) {
    for (int tile = 0; tile < num_tiles(); ++tile) walk(piece, tile);
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x & (kWarpSize - 1)); }
  __device__ int num_tiles() const { return Config::kTiles ? args_.layout.tiles : 1; }

  __device__ void walk(const Piece& piece, int tile) {
    const HeadVectors<kRepeat> vectors(args_.layout, work_, tile);
    const char* own_row = static_cast<const char*>(args_.feat) +
                          static_cast<uint64_t>(piece.row) * (args_.row_elements * static_cast<uint32_t>(sizeof(T)));
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      own_[r] = Own::load(own_row + vectors.index[r] * (kVector * sizeof(T)));
      source_[r] = as_computed(static_cast<const char*>(args_.grad) + vectors.index[r] * (kVector * sizeof(G)));
    }
    sum_.clear();
    in_dot_ = vectors.count;
    tile_ = tile;
    add_edges(piece);
    sum_.finish();
    sum_.sum_over_lanes(kWarpSize >> args_.layout.log2_groups(), kWarpSize);  // over the groups
    store(piece, vectors);
  }

  __device__ void add_edges(const Piece& piece) {
    const int log2_groups = args_.layout.log2_groups(), groups = 1 << log2_groups;
    int run = 0;
    if (!piece.is_empty() && ids_begin_ != piece.begin) load_ids(piece.begin);
    uint32_t left = piece.num_edges();
    while (left > 0) {
      const Chunk chunk{ids_, ids_begin_, left < kWarpSize ? static_cast<int>(left) : kWarpSize};
      left -= chunk.count;
      // A chunk ahead: the next row starts where this one ends.
      const bool returns = left == 0 && tile_ + 1 < num_tiles();
      load_ids(returns ? piece.begin : chunk.begin + chunk.count);
      const float scale = args_.scale.exists() ? args_.scale.of(chunk.ids.column) : 1.f;
      int start = 0;
      for (; start + (kUnroll << log2_groups) <= chunk.count; start += kUnroll << log2_groups) {
        add_batch<kUnroll, true>(chunk, scale, start);
      }
      if (start + groups < chunk.count) {
        add_batch<kUnroll, false>(chunk, scale, start);
      } else if (start < chunk.count) {  // one edge per group
        add_batch<1, false>(chunk, scale, start);
      }
      run += kWarpSize;
      if (run == kRun << log2_groups) {
        sum_.end_run();
        run = 0;
      }
    }
  }
  __device__ void load_ids(uint32_t begin) {
    ids_begin_ = begin;
    ids_.load(args_.units.rows, args_.columns, args_.edge_ids, true, begin, lane());
  }

  // `count` positions from `begin`.
  struct Chunk {
    ChunkIds ids;
    uint32_t begin;
    int count;
  };

  // Adds kEdges edges of every group, from place `start` of a chunk, and writes their dots. All loads
  // are issued before the first sum. If the batch is not kFull, a place past the last edge reads that edge's row again
  // and adds 0.
  template <int kEdges, bool kFull>
  __device__ void add_batch(const Chunk& chunk, float scale, int start) {
    const int count = chunk.count;
    const int log2_groups = args_.layout.log2_groups();
    const uint32_t row_bytes = args_.row_elements * static_cast<uint32_t>(sizeof(G));
    Row rows[kEdges][kRepeat];
    uint32_t edge[kEdges];
    float times[kEdges], dot[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int place = start + (u << log2_groups) + work_.group;
      const int source = kFull || place < count ? place : count - 1;
      const uint64_t row = static_cast<uint64_t>(__shfl_sync(kFullMask, chunk.ids.column, source)) * row_bytes;
      edge[u] = __shfl_sync(kFullMask, chunk.ids.edge, source);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) rows[u][r] = Row::load(source_[r] + row);
    }
    load_weights(edge, times);
    if (args_.scale.exists()) {
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        const int place = start + (u << log2_groups) + work_.group;
        times[u] *= __shfl_sync(kFullMask, scale, kFull || place < count ? place : count - 1);
      }
    }
    if constexpr (!kFull) {
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        if (start + (u << log2_groups) + work_.group >= count) times[u] = 0.f;
      }
    }
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float own[kVector];
      own_[r].widen(own);
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        if constexpr (!kFull) rows[u][r].keep_if(start + (u << log2_groups) + work_.group < count);
        float values[kVector], part = 0.f;
        rows[u][r].widen(values);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          sum_.run[r][i] = fmaf(times[u], values[i], sum_.run[r][i]);
          part = fmaf(own[i], values[i], part);
        }
        part = r < in_dot_ ? part : 0.f;
        dot[u] = r == 0 ? part : dot[u] + part;
      }
    }
    sum_over_head(dot, args_.layout.log2_lanes, lane());
    store_dots(chunk, scale, start, dot);
  }

  // The branch is the same for all lanes, and taken once per batch.
  template <int kEdges>
  __device__ void load_weights(const uint32_t (&edge)[kEdges], float (&weights)[kEdges]) const {
    if (args_.weight_is_float) {
#pragma unroll
      for (int u = 0; u < kEdges; ++u) weights[u] = __ldg(reinterpret_cast<const float*>(weight_at(edge[u])));
    } else {
      Fragment<T, 1> loaded[kEdges];
#pragma unroll
      for (int u = 0; u < kEdges; ++u) loaded[u] = Fragment<T, 1>::load(weight_at(edge[u]));
#pragma unroll
      for (int u = 0; u < kEdges; ++u) weights[u] = loaded[u].value();
    }
  }
  __device__ const char* weight_at(uint32_t edge) const {
    return weight_ + static_cast<uint64_t>(edge) * args_.weight_bytes;
  }

  template <int kEdges>
  __device__ void store_dots(const Chunk& chunk, float scale, int start, const float (&dot)[kEdges]) const {
    const auto heads = static_cast<uint32_t>(args_.layout.heads), head = static_cast<uint32_t>(work_.head);
    for_each_owned<kEdges>(args_.layout, work_, [&](int i, int place, bool writes) {
      const int source = start + place < chunk.count ? start + place : chunk.count - 1;
      const uint32_t edge = __shfl_sync(kFullMask, chunk.ids.edge, source);
      const float times = args_.scale.exists() ? __shfl_sync(kFullMask, scale, source) : 1.f;
      if (!writes || start + place >= chunk.count) return;
      float value = dot[i];
      if (Config::kTiles && args_.dots != nullptr) {
        // The same lane has this edge in every tile.
        float* sofar = args_.dots + static_cast<uint64_t>(chunk.begin + start + place) * heads + head;
        if (tile_ > 0) value += *sofar;
        if (tile_ + 1 < num_tiles()) {
          *sofar = value;
          return;
        }
      }
      store_result<T>(args_.grad_weight, args_.weight_is_float, static_cast<uint64_t>(edge) * heads + head,
                      value * times);
    });
  }

  __device__ void store(const Piece& piece, const HeadVectors<kRepeat>& vectors) const {
    if (work_.group != 0 || !work_.exists(args_.layout)) return;
    const uint64_t first = static_cast<uint64_t>(piece.line) * args_.row_elements;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      const uint64_t at = first + vectors.index[r] * kVector;
      if (r >= vectors.count) continue;
      if (piece.is_whole_row) {
        store_rounded(static_cast<T*>(args_.grad_feat) + at, sum_.run[r]);
      } else {
        store_rounded(args_.partial + at, sum_.run[r]);
      }
    }
  }

  const MulKernelArgs& args_;
  const HeadLane work_;
  ChunkIds ids_;  // of the next chunk
  uint32_t ids_begin_;
  Own own_[kRepeat];
  const char* weight_;  // of the lane's head, of edge 0
  const char* source_[kRepeat];
  RunningSum<kRepeat, kVector, Config::kThreads> sum_;
  int in_dot_;
  int tile_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) mul_backward_kernel(const MulKernelArgs args) {
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * Config::kWarps + threadIdx.x / kWarpSize;
  if (warp >= args.num_units * args.layout.slices) return;  // whole warps
  const auto slice = static_cast<int>(args.layout.by_slice ? warp / args.num_units : warp % args.layout.slices);
  const auto unit = static_cast<uint32_t>(args.layout.by_slice ? warp % args.num_units : warp / args.layout.slices);
  MulLane<Config> work(args, slice, lane);
  for_each_piece(args.units, unit, lane, [&](const Piece& piece) { work.run(piece); });
}

template <class Config>
cudaError_t launch_mul_backward(const MulBackwardArgs& args, const MulPlan& plan, const Launch& launch) {
  MulKernelArgs kernel{};
  kernel.units = plan.units;
  kernel.columns = indices_of(args.topology);
  kernel.edge_ids = edge_ids_of(args.topology);
  kernel.layout = plan.layout;
  kernel.feat = args.feat;
  kernel.grad = args.grad;
  kernel.weight = args.weight;
  kernel.weight_is_float = args.weight_type == DType::kFloat;
  kernel.scale = inverse_degrees_of(args.mean_indptr, args.topology);
  kernel.grad_feat = args.grad_feat;
  kernel.grad_weight = args.grad_weight;
  kernel.partial = plan.partial;
  kernel.dots = plan.dots;
  kernel.weight_bytes = static_cast<uint32_t>(args.heads * size_of(args.weight_type));
  kernel.row_elements = static_cast<uint32_t>(args.heads * args.dim);
  kernel.num_units = plan.units.num_units;
  const int64_t blocks = ceil_div(kernel.num_units * plan.layout.slices, Config::kWarps);
  return cuda::launch(mul_backward_kernel<Config>, blocks, Config::kThreads, launch.stream, kernel);
}

template <typename T, typename G>
cudaError_t mul_backward_with(const MulBackwardArgs& args, const MulPlan& plan, const Launch& launch) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(G));
  if (plan.vector == widest) {
    return plan.repeat == 1 ? launch_mul_backward<MulConfig<T, G, widest, 1>>(args, plan, launch)
                            : launch_mul_backward<MulConfig<T, G, widest, 4>>(args, plan, launch);
  }
  if (plan.vector == widest / 2) return launch_mul_backward<MulConfig<T, G, widest / 2, 2>>(args, plan, launch);
  if constexpr (widest == 8) {
    if (plan.vector == 2) return launch_mul_backward<MulConfig<T, G, 2, 4>>(args, plan, launch);
  }
  return launch_mul_backward<MulConfig<T, G, 1, 4>>(args, plan, launch);
}

template <typename T>
cudaError_t mul_backward_of(const MulBackwardArgs& args, const MulPlan& plan, const Launch& launch) {
  return args.grad_type == args.type ? mul_backward_with<T, T>(args, plan, launch)
                                     : mul_backward_with<T, float>(args, plan, launch);
}

}  // namespace halfgnn::cuda
