// The kernel behind mul_backward. Include only where it is instantiated (mul_backward_<type>.cu).
//
// Teams of a warp take rows (row_teams.cuh). A lane holds its part of the row of feat and gathers rows of grad, several
// edges in flight. Each gathered row serves twice: it is added to the row's sum, and it is a factor of the edge's dot.
// If a head is too wide for registers, the row is walked once per tile.
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
  static constexpr int kUnroll = edges_in_flight(kElements * sizeof(G));
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kWarpSize;
  // Registers hold those edges, the sums, the row of feat, and addresses: 80, 128 with two accesses per lane and row,
  // 112 to 160 with four.
  static constexpr int kMinBlocks = kRepeat == 1 ? 6 : kRepeat == 2 ? 4 : kUnroll == 2 ? 3 : 4;
};

struct MulKernelArgs {
  TeamUnits units;
  Ids columns;
  Ids edge_ids;
  HeadLayout layout;
  const void* feat;
  const void* grad;
  const void* weight;
  DType weight_type;
  InverseDegrees scale;  // of the columns
  void* grad_feat;
  void* grad_weight;
  float* partial;
  float* dots;
  uint32_t row_elements;
  uint32_t weight_bytes;  // of an edge
  uint32_t unit_blocks;   // blocks that cover all units, for one slice
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

  __device__ MulLane(const MulKernelArgs& args, int slice, int lane) : args_(args), work_(args.layout, slice, lane) {
    const int64_t offset = static_cast<int64_t>(work_.read(args.layout)) * (args.weight_bytes / args.layout.heads);
    weight_ = as_computed(static_cast<const char*>(args.weight) + offset);
    if constexpr (!Config::kTiles) choose_tile(0);
  }

  // What TeamWalk calls.
  __device__ int passes() const { return Config::kTiles ? args_.layout.tiles : 1; }
  __device__ ChunkIds load(uint32_t position) const {
    return {args_.columns.id(position), args_.edge_ids.id(position)};
  }

  __device__ void start(const Team&, const TeamRow&, uint32_t row, int tile) {
    if constexpr (Config::kTiles) choose_tile(tile);
    const char* own_row =
        static_cast<const char*>(args_.feat) + uint64_t{row} * (args_.row_elements * static_cast<uint32_t>(sizeof(T)));
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) own_[r] = Own::load(own_row + (first_ + distance(r)) * (kVector * sizeof(T)));
    sum_.clear();
  }

  __device__ void add(const Team& team, const TeamRow& row, const Lengths& lengths, const ChunkIds& ids, int chunk) {
    const float scale = args_.scale.exists() ? args_.scale.of(ids.column) : 1.f;
    for_each_batch<kUnroll>(team, lengths, chunk, [&](auto edges, auto full, int start) {
      add_batch<decltype(edges)::value, decltype(full)::value>(team, row, {ids, scale, chunk, start});
    });
    if (((chunk + team.size) & (kRun * team.num_groups - 1)) == 0) sum_.end_run();
  }

  __device__ void finish(const Team& team, const TeamRow& row, bool is_piece) {
    sum_.finish();
    sum_.sum_over_lanes(1 << args_.units.layout.log2_lanes, team.size);  // over the groups
    const bool writes = row.exists() && team.group == 0 && work_.exists(args_.layout);
    if (is_piece) {
      store(args_.partial, row.line, writes);
    } else {
      store(static_cast<T*>(args_.grad_feat), row.line, writes);
    }
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x & (kWarpSize - 1)); }

  __device__ void choose_tile(int tile) {
    const HeadVectors<kRepeat> vectors(args_.layout, work_, tile);
    first_ = vectors.index[0];
    span_ = vectors.index[kRepeat - 1] - first_;
    source_ = as_computed(static_cast<const char*>(args_.grad) + first_ * (kVector * sizeof(G)));
    num_vectors_ = vectors.count;
    tile_ = tile;
  }

  // From the first vector that the lane reads to the r-th, as HeadVectors says.
  __device__ uint32_t distance(int r) const {
    return r == 0 ? 0 : min(static_cast<uint32_t>(r) << args_.layout.log2_lanes, span_);
  }

  // Edges of a chunk, from `start` on.
  struct Batch {
    const ChunkIds& ids;
    float scale;
    int chunk;
    int start;
  };

  // Adds kEdges edges of every group, and writes their dots. All loads are issued before the first sum. If the batch is
  // not kFull, a place past the last edge reads a row that is there and adds 0.
  template <int kEdges, bool kFull>
  __device__ void add_batch(const Team& team, const TeamRow& row, const Batch& batch) {
    const uint32_t row_bytes = args_.row_elements * static_cast<uint32_t>(sizeof(G));
    const int left = row.num_edges - batch.chunk - batch.start;
    Row rows[kEdges][kRepeat];
    uint32_t edge[kEdges];
    float times[kEdges], dot[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + batch.start + u * team.num_groups;
      const char* row_of_grad = source_ + uint64_t{__shfl_sync(kFullMask, batch.ids.column, source)} * row_bytes;
      edge[u] = __shfl_sync(kFullMask, batch.ids.edge, source);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) rows[u][r] = Row::load(row_of_grad + distance(r) * (kVector * sizeof(G)));
    }
    load_weights(edge, times);
    if (args_.scale.exists()) {
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        times[u] *= __shfl_sync(kFullMask, batch.scale, team.source + batch.start + u * team.num_groups);
      }
    }
    if constexpr (!kFull) {
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        if (u * team.num_groups + team.group >= left) times[u] = 0.f;
      }
    }
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float own[kVector];
      own_[r].widen(own);
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        if constexpr (!kFull) rows[u][r].keep_if(u * team.num_groups + team.group < left);
        float values[kVector], part = 0.f;
        rows[u][r].widen(values);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          sum_.run[r][i] = fmaf(times[u], values[i], sum_.run[r][i]);
          part = fmaf(own[i], values[i], part);
        }
        part = r < num_vectors_ ? part : 0.f;
        dot[u] = r == 0 ? part : dot[u] + part;
      }
    }
    sum_over_head(dot, args_.layout.log2_lanes, lane());
    store_dots(team, row, batch, dot);
  }

  // The branch is the same for all lanes, and taken once per batch.
  template <int kEdges>
  __device__ void load_weights(const uint32_t (&edge)[kEdges], float (&weights)[kEdges]) const {
    if (args_.weight_type == DType::kFloat) {
#pragma unroll
      for (int u = 0; u < kEdges; ++u) weights[u] = __ldg(reinterpret_cast<const float*>(weight_at(edge[u])));
    } else {
      Narrow loaded[kEdges];
#pragma unroll
      for (int u = 0; u < kEdges; ++u) loaded[u] = Narrow::load(weight_at(edge[u]));
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        weights[u] = loaded[u].value();
        if (kEitherHalf && args_.weight_type == DType::kBFloat16) weights[u] = as_bfloat16(loaded[u]).value();
      }
    }
  }
  // Weights that are not fp32 have the type of the rows or, beside fp32 rows, either half type.
  static constexpr bool kEitherHalf = sizeof(T) == sizeof(float);
  using Narrow = Fragment<std::conditional_t<kEitherHalf, __half, T>, 1>;
  static __device__ Fragment<__nv_bfloat16, 1> as_bfloat16(const Narrow& weight) { return {weight.word}; }
  __device__ const char* weight_at(uint32_t edge) const {
    return weight_ + static_cast<uint64_t>(edge) * args_.weight_bytes;
  }

  template <int kEdges>
  __device__ void store_dots(const Team& team, const TeamRow& row, const Batch& batch,
                             const float (&dot)[kEdges]) const {
    const auto heads = static_cast<uint32_t>(args_.layout.heads), head = static_cast<uint32_t>(work_.head);
    for_each_owned_value<kEdges, kRepeat == 1>(args_.layout, work_, [&](int i, int u, bool writes) {
      const int place = batch.start + u * team.num_groups, source = team.source + place;
      const int in_row = batch.chunk + place + team.group;
      const uint32_t edge = __shfl_sync(kFullMask, batch.ids.edge, source);
      const float times = args_.scale.exists() ? __shfl_sync(kFullMask, batch.scale, source) : 1.f;
      const bool owns = writes && in_row < row.num_edges;
      float value = dot[i];
      if (Config::kTiles && args_.dots != nullptr) {
        // The same lane has this edge in every tile.
        float* sofar = args_.dots + uint64_t{row.begin + static_cast<uint32_t>(in_row)} * heads + head;
        if (owns && tile_ > 0) value += *sofar;
        if (tile_ + 1 < passes()) {
          if (owns) *sofar = value;
          return;
        }
      }
      // Only the stores depend on what differs from lane to lane.
      char* target = static_cast<char*>(args_.grad_weight) + (weight_at(edge) - static_cast<const char*>(args_.weight));
      value *= times;
      auto rounded = Narrow::round(&value).word;
      if (kEitherHalf && args_.weight_type == DType::kBFloat16) {
        rounded = Fragment<__nv_bfloat16, 1>::round(&value).word;
      }
      if (args_.weight_type == DType::kFloat) {
        store_streaming_if(owns, target, value);
      } else {
        store_streaming_if(owns, target, rounded);
      }
    });
  }

  template <typename U>
  __device__ void store(U* out, uint32_t line, bool writes) const {
    U* target = out + uint64_t{line} * args_.row_elements;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      if (writes && r < num_vectors_) store_rounded(target + (first_ + distance(r)) * kVector, sum_.run[r]);
    }
  }

  const MulKernelArgs& args_;
  const HeadLane work_;
  uint32_t first_;   // of the lane's vectors, in a row
  uint32_t span_;    // from it to the last that the lane reads
  int num_vectors_;  // that are the lane's
  Own own_[kRepeat];
  const char* weight_;  // of the lane's head, of edge 0
  const char* source_;  // the lane's first vector of row 0 of grad
  RunningSum<kRepeat, kVector, Config::kThreads> sum_;
  int tile_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) mul_backward_kernel(const MulKernelArgs args) {
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  const auto slices = static_cast<uint32_t>(args.layout.slices);
  const uint32_t slice = args.layout.by_slice ? blockIdx.x / args.unit_blocks : blockIdx.x % slices;
  const uint32_t block = args.layout.by_slice ? blockIdx.x % args.unit_blocks : blockIdx.x / slices;
  MulLane<Config> work(args, static_cast<int>(slice), lane);
  TeamWalk(args.units, lane, work).walk(block * Config::kWarps + threadIdx.x / kWarpSize);
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
  kernel.weight_type = args.weight_type;
  kernel.scale = inverse_degrees_of(args.mean_indptr, args.topology);
  kernel.grad_feat = args.grad_feat;
  kernel.grad_weight = args.grad_weight;
  kernel.partial = plan.partial;
  kernel.dots = plan.dots;
  kernel.weight_bytes = static_cast<uint32_t>(args.heads * size_of(args.weight_type));
  kernel.row_elements = static_cast<uint32_t>(args.heads * args.dim);
  const int64_t unit_blocks = ceil_div(plan.units.row_units.num_units, Config::kWarps);
  const int64_t blocks = unit_blocks * plan.layout.slices;
  kernel.unit_blocks = static_cast<uint32_t>(unit_blocks);
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
