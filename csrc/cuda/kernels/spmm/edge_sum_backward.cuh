// The kernel behind edge_sum_backward. Include only where it is instantiated (edge_sum_backward_<type>.cu).
#pragma once

#include "edge_message.cuh"

namespace halfgnn::cuda {

// What a lane does (TeamWalk).
template <class Config>
struct EdgeGradientLane : RowLane<Config, 1> {
  using Base = RowLane<Config, 1>;
  using Base::kVector, Base::kRepeat, Base::slice, Base::sum;
  static constexpr bool kAdds = Config::kMessage == Message::kAdd;  // reads neither feat nor edge
  using N = typename Config::Node;
  using Own = Fragment<N, kVector>;
  using Row = Fragment<typename Config::Element, kVector>;
  using EdgeRow = Fragment<typename Config::Edge, kVector>;

  const EdgeSumBackwardKernelArgs& args;
  const LaneSource<kRepeat> edge;
  Own own[kRepeat];

  explicit __device__ EdgeGradientLane(const EdgeSumBackwardKernelArgs& args)
      : Base(args.gather),
        args(args),
        edge(source_of<Config>(args.edge, Config::kEdgeVectorBytes, args.gather, slice)) {}

  __device__ ChunkIds load(uint32_t position) const {
    return {args.gather.feat_rows.id(position), args.edge_ids.id(position)};
  }

  __device__ void start(const Team&, const TeamRow&, uint32_t row, int) {
    sum.clear();
    if constexpr (!kAdds) {
      const char* own_row = static_cast<const char*>(args.feat) + uint64_t{row} * args.feat_row_bytes;
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        own[r] = args.feat != nullptr ? Own::load(own_row + slice.vector(r, args.gather) * Own::kBytes) : Own{};
      }
    }
  }

  __device__ void add(const Team& team, const TeamRow& row, const Lengths& lengths, const ChunkIds& ids, int chunk) {
    const float scale = args.scale.exists() ? args.scale.of(ids.column) : 1.f;
    const int left = row.num_edges - chunk;
    Base::add_chunk(team, lengths, chunk, [&](auto edges, auto full, int start) {
      add_batch<decltype(edges)::value, decltype(full)::value>(team, ids, scale, start, left);
    });
  }

  __device__ void finish(const Team& team, const TeamRow& row, bool is_piece) {
    const bool writes = Base::finish_sums(team, row) && args.grad_feat != nullptr;
    if (is_piece) return store_sums<Config>(args.partial, row.line, writes, args.gather, slice, sum.run);
    store_sums<Config>(static_cast<N*>(args.grad_feat), row.line, writes, args.gather, slice, sum.run);
  }

 private:
  __device__ const LaneSource<kRepeat>& grad() const { return Base::feat; }  // the rows that are gathered

  // Adds the gradients of kEdges edges of every group, those at `start` and after of a chunk of which the team has
  // `left` edges, and writes those of the edges. All loads are issued before the first sum. If the batch is not kFull,
  // a place past the last edge reads rows that are there, adds 0 and writes nothing.
  template <int kEdges, bool kFull>
  __device__ void add_batch(const Team& team, const ChunkIds& ids, float scale, int start, int left) {
    Row rows[kEdges][kRepeat];
    EdgeRow edges[kEdges][kRepeat];
    uint32_t id[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + start + u * team.num_groups;
      const char* row = grad().of_row(__shfl_sync(kFullMask, ids.column, source), args.gather.row_bytes);
      id[u] = __shfl_sync(kFullMask, ids.edge, source);
      const char* of_edge = edge.of_row(id[u], args.edge_row_bytes);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        rows[u][r] = Row::load(grad().at(row, r));
        if constexpr (!kAdds) {
          edges[u][r] = args.reads_edge ? EdgeRow::load_streaming(edge.at(of_edge, r)) : EdgeRow{};
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int place = start + u * team.num_groups;
      const bool keep = kFull || place + team.group < left;
      const float times = args.scale.exists() ? __shfl_sync(kFullMask, scale, team.source + place) : 1.f;
      const char* target = edge.of_row(id[u], args.edge_row_bytes) + args.grad_edge_distance;
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        if constexpr (!kFull) {
          rows[u][r].keep_if(keep);
          if constexpr (!kAdds) edges[u][r].keep_if(keep);
        }
        float of_edge[kVector];
        add_gradient(r, rows[u][r], edges[u][r], times, of_edge);
        store_rounded_if<typename Config::Edge>(keep && args.writes_edge && slice.has(r, args.gather),
                                                const_cast<char*>(edge.at(target, r)), of_edge);
      }
    }
  }

  // Adds the gradient of the node's row and leaves that of the edge's.
  __device__ void add_gradient(int r, const Row& row, const EdgeRow& edge_row, float times, float (&of_edge)[kVector]) {
    float g[kVector];
    row.widen(g);
#pragma unroll
    for (int i = 0; i < kVector; ++i) g[i] *= times;
    if constexpr (kAdds) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sum.run[r][i] += g[i];
        of_edge[i] = args.sign * g[i];
      }
    } else {
      float x[kVector], e[kVector];
      own[r].widen(x);
      edge_row.widen(e);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if constexpr (Config::kMessage == Message::kMul) {
          sum.run[r][i] = fmaf(g[i], e[i], sum.run[r][i]);
          of_edge[i] = g[i] * x[i];
        } else {
          of_edge[i] = relu_if(x[i] + e[i], g[i]);
          sum.run[r][i] += of_edge[i];
        }
      }
    }
  }
};

// Registers of four edges in flight: 80 where the rows of edges are not read, otherwise 96, or 128 where a lane has
// eight elements of a row.
template <class Config>
constexpr int kEdgeGradientMinBlocks = Config::kMessage == Message::kAdd        ? 6
                                       : Config::kVector * Config::kRepeat == 8 ? 4
                                                                                : 5;

template <class Config>
__global__ void __launch_bounds__(kGatherThreads, kEdgeGradientMinBlocks<Config>)
    edge_sum_backward_kernel(const EdgeSumBackwardKernelArgs args) {
  walk_unit<EdgeGradientLane<Config>>(args);
}

template <typename T>
cudaError_t edge_sum_backward_of(const EdgeSumBackwardArgs& args, const EdgeSumBackwardKernelArgs& kernel_args,
                                 const GatherShape& shape, const Launch& launch) {
  return with_message(args.op, [&](auto message) {
    return with_float_or<T>(args.grad_type, [&](auto g) {
      return with_partner_type<T>(args.edge_type, [&](auto e) {
        using G = TypeOf<decltype(g)>;
        using E = TypeOf<decltype(e)>;
        const auto fits = [&](int64_t count) {
          return args.dim % count == 0 &&
                 are_aligned(count * static_cast<int64_t>(sizeof(T)), args.feat, args.grad_feat) &&
                 are_aligned(count * static_cast<int64_t>(sizeof(G)), args.grad) &&
                 are_aligned(count * static_cast<int64_t>(sizeof(E)), args.edge, args.grad_edge);
        };
        constexpr int widest = sizeof(G) > sizeof(E) ? sizeof(G) : sizeof(E);
        constexpr bool same = std::is_same_v<T, G> && std::is_same_v<T, E>;
        return with_fitting_vector<widest, same>(fits, [&](auto vector, auto repeat) {
          using Config =
              EdgeSumConfig<decltype(message)::value, T, G, E, decltype(vector)::value, decltype(repeat)::value>;
          return launch_rows<Config>(edge_sum_backward_kernel<Config>, args.topology, shape, kernel_args, launch);
        });
      });
    });
  });
}

}  // namespace halfgnn::cuda
