// The kernel behind edge_sum. Include only where it is instantiated (edge_sum_<type>.cu).
#pragma once

#include "edge_message.cuh"

namespace halfgnn::cuda {

// What a lane does (TeamWalk).
template <class Config>
struct EdgeSumLane : RowLane<Config, 1> {
  using Base = RowLane<Config, 1>;
  using Base::kVector, Base::kRepeat, Base::slice, Base::feat, Base::sum;
  using T = typename Config::Element;
  using Row = Fragment<T, kVector>;
  using EdgeRow = Fragment<typename Config::Edge, kVector>;

  const EdgeSumKernelArgs& args;
  const LaneSource<kRepeat> edge;

  explicit __device__ EdgeSumLane(const EdgeSumKernelArgs& args)
      : Base(args.gather),
        args(args),
        edge(source_of<Config>(args.edge, Config::kEdgeVectorBytes, args.gather, slice)) {}

  __device__ ChunkIds load(uint32_t position) const {
    return {args.gather.feat_rows.id(position), args.edge_ids.id(position)};
  }
  __device__ void start(const Team&, const TeamRow&, uint32_t, int) { sum.clear(); }

  __device__ void add(const Team& team, const TeamRow& row, const Lengths& lengths, const ChunkIds& ids, int chunk) {
    const int left = row.num_edges - chunk;
    Base::add_chunk(team, lengths, chunk, [&](auto edges, auto full, int start) {
      add_batch<decltype(edges)::value, decltype(full)::value>(team, ids, start, left);
    });
  }

  __device__ void finish(const Team& team, const TeamRow& row, bool is_piece) {
    const bool writes = Base::finish_sums(team, row);
    if (is_piece) return store(args.partial, row.line, writes);
    if (args.divide_by_degree) divide_by(row.num_edges);
    if (args.out_is_float) return store(static_cast<float*>(args.out), row.line, writes);
    store(static_cast<T*>(args.out), row.line, writes);
  }

 private:
  // Adds the messages of kEdges edges of every group, those at `start` and after of a chunk of which the team has
  // `left` edges. All loads are issued before the first addition. If the batch is not kFull, a place past the last edge
  // reads rows that are there and adds 0.
  template <int kEdges, bool kFull>
  __device__ void add_batch(const Team& team, const ChunkIds& ids, int start, int left) {
    Row rows[kEdges][kRepeat];
    EdgeRow edges[kEdges][kRepeat];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + start + u * team.num_groups;
      const char* row = feat.of_row(__shfl_sync(kFullMask, ids.column, source), args.gather.row_bytes);
      const char* of_edge = edge.of_row(__shfl_sync(kFullMask, ids.edge, source), args.edge_row_bytes);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        rows[u][r] = Row::load(feat.at(row, r));
        edges[u][r] = EdgeRow::load_streaming(edge.at(of_edge, r));
      }
    }
    // The batch is summed before it joins the run: a shorter run, so a smaller error, at no cost.
    float batch[kRepeat][kVector];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const bool keep = kFull || start + u * team.num_groups + team.group < left;
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        if constexpr (!kFull) {
          rows[u][r].keep_if(keep);
          edges[u][r].keep_if(keep);
        }
        add_message(u == 0, rows[u][r], edges[u][r], batch[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum.run[r][i] += batch[r][i];
    }
  }

  // to = the message if it is the first, to += the message otherwise
  __device__ void add_message(bool is_first, const Row& row, const EdgeRow& edge_row, float (&to)[kVector]) const {
    float x[kVector], e[kVector];
    row.widen(x);
    edge_row.widen(e);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if constexpr (Config::kMessage == Message::kMul) {
        to[i] = is_first ? x[i] * e[i] : fmaf(x[i], e[i], to[i]);
      } else {
        float message;
        if constexpr (Config::kMessage == Message::kAdd) {
          message = fmaf(args.sign, e[i], x[i]);
        } else {
          message = relu_if(x[i] + e[i], x[i] + e[i]);
        }
        to[i] = is_first ? message : to[i] + message;
      }
    }
  }

  __device__ void divide_by(int degree) {
    const float divisor = static_cast<float>(degree), reciprocal = __frcp_rn(divisor);
    if (degree == 0) return;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum.run[r][i] = divide(sum.run[r][i], divisor, reciprocal);
    }
  }

  template <typename U>
  __device__ void store(U* out, uint32_t line, bool writes) const {
    store_sums<Config>(out, line, writes, args.gather, slice, sum.run);
  }
};

// Registers of four edges in flight, of two rows each: 80, so 24 warps.
template <class Config>
__global__ void __launch_bounds__(kGatherThreads, 6) edge_sum_kernel(const EdgeSumKernelArgs args) {
  walk_unit<EdgeSumLane<Config>>(args);
}

template <typename T>
cudaError_t edge_sum_of(const EdgeSumArgs& args, const EdgeSumKernelArgs& kernel_args, const GatherShape& shape,
                        const Launch& launch) {
  return with_message(args.op, [&](auto message) {
    return with_partner_type<T>(args.edge_type, [&](auto e) {
      using E = TypeOf<decltype(e)>;
      const auto fits = [&](int64_t count) {
        return args.dim % count == 0 && are_aligned(count * static_cast<int64_t>(sizeof(T)), args.feat) &&
               are_aligned(count * static_cast<int64_t>(sizeof(E)), args.edge) &&
               are_aligned(store_alignment(args.out_type, static_cast<int>(count)), args.out);
      };
      constexpr int widest = sizeof(T) > sizeof(E) ? sizeof(T) : sizeof(E);
      return with_fitting_vector<widest, std::is_same_v<T, E>>(fits, [&](auto vector, auto repeat) {
        using Config =
            EdgeSumConfig<decltype(message)::value, T, T, E, decltype(vector)::value, decltype(repeat)::value>;
        return launch_rows<Config>(edge_sum_kernel<Config>, args.topology, shape, kernel_args, launch);
      });
    });
  });
}

}  // namespace halfgnn::cuda
