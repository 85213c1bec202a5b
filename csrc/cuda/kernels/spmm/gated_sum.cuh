// The kernel behind gated_sum. Include only where it is instantiated (gated_sum_<type>.cu).
#pragma once

#include "gate.cuh"

namespace halfgnn::cuda {

template <typename T, int kVectorElements, int kVectorsPerLane, bool kEdgesHaveValues>
struct GatedConfig : GatherConfig<T, kVectorElements, kVectorsPerLane> {
  static constexpr bool kEdgeValues = kEdgesHaveValues;
  static constexpr int kUnroll = 2;  // edges, of three rows each, or of four with values
};

// What a lane does (TeamWalk).
template <class Config>
struct GatedSumLane : RowLane<Config, 2> {  // sums of gate value, and of gates
  using Base = RowLane<Config, 2>;
  using Base::kVector, Base::kRepeat, Base::slice, Base::sum;
  using T = typename Config::Element;
  using Row = Fragment<T, kVector>;

  const GatedSumKernelArgs& args;
  const LaneSource<kRepeat> value, edge;
  Row own[kRepeat];

  explicit __device__ GatedSumLane(const GatedSumKernelArgs& args)
      : Base(args.gather),
        args(args),
        value(source_of<Config>(args.value, Config::kVectorBytes, args.gather, slice)),
        edge(source_of<Config>(args.edges.first, Config::kVectorBytes, args.gather, slice)) {}

  __device__ ChunkIds load(uint32_t position) const {
    return {args.gather.feat_rows.id(position), args.edge_ids.id(position)};
  }

  __device__ void start(const Team&, const TeamRow&, uint32_t row, int) {
    sum.clear();
    const char* own_row = static_cast<const char*>(args.gate_dst) + uint64_t{row} * args.gather.row_bytes;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) own[r] = Row::load(own_row + slice.vector(r, args.gather) * Row::kBytes);
  }

  __device__ void add(const Team& team, const TeamRow& row, const Lengths& lengths, const ChunkIds& ids, int chunk) {
    const int left = row.num_edges - chunk;
    Base::add_chunk(team, lengths, chunk, [&](auto edges, auto full, int start) {
      add_batch<decltype(edges)::value, decltype(full)::value>(team, ids, start, left);
    });
  }

  __device__ void finish(const Team& team, const TeamRow& row, bool is_piece) {
    const bool writes = Base::finish_sums(team, row);
    float values[kRepeat][kVector], gates[kRepeat][kVector];
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        values[r][i] = sum.run[r][i];
        gates[r][i] = sum.run[kRepeat + r][i];
      }
    }
    const GatedResult& result = args.result;
    if (is_piece) {
      store(args.partial, row.line, writes, values);
      if (result.normalize) store(args.partial_gates, row.line, writes, gates);
      return;
    }
    if (result.normalize) divide_by(gates, row.num_edges == 0, values);
    store(static_cast<T*>(result.out), row.line, writes, values);
    if (result.scale != nullptr) store(result.scale, row.line, writes, gates);
    if (result.quotient != nullptr) store(result.quotient, row.line, writes, values);
  }

 private:
  __device__ const LaneSource<kRepeat>& gate() const { return Base::feat; }  // the rows that are gathered

  // Adds kEdges edges of every group, those at `start` and after of a chunk of which the team has `left` edges, and
  // writes their z. All loads are issued before the first sum. If the batch is not kFull, a place past the last edge
  // reads rows that are there, adds 0 and writes nothing.
  template <int kEdges, bool kFull>
  __device__ void add_batch(const Team& team, const ChunkIds& ids, int start, int left) {
    Row gates[kEdges][kRepeat], values[kEdges][kRepeat], gate_edges[kEdges][kRepeat];
    [[maybe_unused]] Row edge_values[kEdges][kRepeat];
    uint32_t id[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + start + u * team.num_groups;
      const uint32_t column = __shfl_sync(kFullMask, ids.column, source);
      id[u] = __shfl_sync(kFullMask, ids.edge, source);
      const char* gate_row = gate().of_row(column, args.gather.row_bytes);
      const char* value_row = value.of_row(column, args.gather.row_bytes);
      const char* of_edge = edge.of_row(id[u], args.gather.row_bytes);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        gates[u][r] = Row::load(gate().at(gate_row, r));
        values[u][r] = Row::load(value.at(value_row, r));
        gate_edges[u][r] = load_edge_row<Row>(args.edges, 0, edge, of_edge, r);
        if constexpr (Config::kEdgeValues) {
          edge_values[u][r] = load_given_edge_row<Row>(args.edges, 2, edge, of_edge, r);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const bool keep = kFull || start + u * team.num_groups + team.group < left;
      const char* target = edge.of_row(id[u], args.gather.row_bytes) + args.edges.distance[1];
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        float z[kVector], x[kVector];
        add_gates(own[r], gates[u][r], gate_edges[u][r], z);
        store_rounded_if<T>(keep && args.edges.exists[1] && slice.has(r, args.gather),
                            const_cast<char*>(edge.at(target, r)), z);
        values[u][r].widen(x);
        if constexpr (Config::kEdgeValues) edge_values[u][r].add_to(x);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float weight = gate_of<T>(z[i]).value, product = weight * x[i];
          sum.run[r][i] += keep ? product : 0.f;
          sum.run[kRepeat + r][i] += keep ? weight : 0.f;
        }
      }
    }
  }

  // Leaves quotients in values, and what they were multiplied by in gates.
  __device__ void divide_by(float (&gates)[kRepeat][kVector], bool is_empty, float (&values)[kRepeat][kVector]) const {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        gates[r][i] = is_empty ? 0.f : reciprocal_of<T>(gates[r][i] + args.result.eps);
        values[r][i] *= gates[r][i];
      }
    }
  }

  template <typename U>
  __device__ void store(U* out, uint32_t line, bool writes, const float (&values)[kRepeat][kVector]) const {
    store_sums<Config>(out, line, writes, args.gather, slice, values);
  }
};

// Registers of two edges in flight, of three rows each: 128 for whole vectors, otherwise 96. A fourth row takes more.
template <class Config>
__global__ void __launch_bounds__(kGatherThreads, (Config::kRepeat == 1 ? 4 : 5) - Config::kEdgeValues)
    gated_sum_kernel(const GatedSumKernelArgs args) {
  walk_unit<GatedSumLane<Config>>(args);
}

template <typename T>
cudaError_t gated_sum_of(const GatedSumArgs& args, const GatedSumKernelArgs& kernel_args, const GatherShape& shape,
                         const Launch& launch) {
  const auto fits = [&](int64_t count) {
    return args.dim % count == 0 &&
           are_aligned(count * static_cast<int64_t>(sizeof(T)), args.value, args.gate_src, args.gate_dst,
                       args.gate_edge, args.edge_value, args.edges, args.out) &&
           are_aligned(store_alignment(DType::kFloat, static_cast<int>(count)), args.scale, args.quotient);
  };
  return with_gated_vector<sizeof(T)>(fits, [&](auto vector, auto repeat) {
    constexpr int kVector = decltype(vector)::value, kRepeat = decltype(repeat)::value;
    const auto start = [&](auto has_values) {
      using Config = GatedConfig<T, kVector, kRepeat, decltype(has_values)::value>;
      return launch_rows<Config>(gated_sum_kernel<Config>, args.topology, shape, kernel_args, launch);
    };
    return args.edge_value != nullptr ? start(std::true_type{}) : start(std::false_type{});
  });
}

}  // namespace halfgnn::cuda
