// The kernel behind gated_sum_backward. Include only where it is instantiated (gated_sum_backward_<type>.cu).
#pragma once

#include "gate.cuh"

namespace halfgnn::cuda {

// kRowsAreSources: which of the two passes. G: the type of grad; if it is float, there may be shifts.
template <bool kRowsAreSources, typename T, typename G, int kVectorElements, int kVectorsPerLane, bool kEdgesHaveValues>
struct GateGradientConfig : GatherConfig<T, kVectorElements, kVectorsPerLane> {
  using Grad = G;
  static constexpr bool kBySrc = kRowsAreSources;
  static constexpr bool kShifts = std::is_same_v<G, float>;
  static constexpr bool kEdgeValues = kEdgesHaveValues;
  static constexpr int kUnroll = 2;  // edges, of four to six rows each
  // Registers of two edges in flight: 128. Values of edges take more to sources, and where rows are read element by
  // element.
  static constexpr bool kNeedsMore = kVectorsPerLane == 4 || (kBySrc && std::is_same_v<T, G>);
  static constexpr int kMinBlocks = kEdgeValues && kNeedsMore ? 3 : 4;
};

// What a lane does (TeamWalk).
template <class Config>
struct GateGradientLane : RowLane<Config, Config::kBySrc ? 2 : 1> {  // sums of dz, and of gate grad
  using Base = RowLane<Config, Config::kBySrc ? 2 : 1>;
  using Base::kVector, Base::kRepeat, Base::slice, Base::sum;
  static constexpr bool kBySrc = Config::kBySrc;
  using T = typename Config::Element;
  using Row = Fragment<T, kVector>;
  using Grad = Fragment<typename Config::Grad, kVector>;
  using Shift = Fragment<float, Config::kShifts ? kVector : 1>;
  using EdgeValue = Fragment<T, Config::kEdgeValues ? kVector : 1>;
  // Of the row, and of the columns, beside gates.
  using Own = std::conditional_t<kBySrc, Row, Grad>;
  using Far = std::conditional_t<kBySrc, Grad, Row>;

  const GatedBackwardKernelArgs& args;
  const LaneSource<kRepeat> far, shift, edge;
  Row own_gate[kRepeat];
  Own own[kRepeat];
  Shift own_shift[kRepeat];

  explicit __device__ GateGradientLane(const GatedBackwardKernelArgs& args)
      : Base(args.gather),
        args(args),
        far(source_of<Config>(kBySrc ? args.grad : args.value, Far::kBytes, args.gather, slice)),
        shift(source_of<Config>(args.shift, Shift::kBytes, args.gather, slice)),
        edge(source_of<Config>(args.edges.first, Config::kVectorBytes, args.gather, slice)) {}

  __device__ ChunkIds load(uint32_t position) const {
    return {args.gather.feat_rows.id(position), args.edge_ids.id(position)};
  }

  __device__ void start(const Team&, const TeamRow&, uint32_t row, int) {
    sum.clear();
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      // In vectors: a row has as many in each array.
      const uint64_t place =
          uint64_t{row} * static_cast<uint32_t>(args.gather.num_vectors) + slice.vector(r, args.gather);
      const auto at = [place](const void* data, int bytes) { return static_cast<const char*>(data) + place * bytes; };
      own_gate[r] = Row::load(at(args.own_gate, Row::kBytes));
      own[r] = Own::load(at(kBySrc ? args.value : args.grad, Own::kBytes));
      if constexpr (Config::kShifts && !kBySrc) {
        own_shift[r] = args.shift != nullptr ? Shift::load(at(args.shift, Shift::kBytes)) : Shift{};
      }
    }
  }

  __device__ void add(const Team& team, const TeamRow& row, const Lengths& lengths, const ChunkIds& ids, int chunk) {
    const int left = row.num_edges - chunk;
    Base::add_chunk(team, lengths, chunk, [&](auto edges, auto full, int start) {
      add_batch<decltype(edges)::value, decltype(full)::value>(team, ids, start, left);
    });
  }

  __device__ void finish(const Team& team, const TeamRow& row, bool is_piece) {
    const bool writes = Base::finish_sums(team, row);
    store(args.grad_gate, args.partial_gate, 0, row.line, writes, is_piece);
    if constexpr (kBySrc) store(args.grad_value, args.partial_value, kRepeat, row.line, writes, is_piece);
  }

 private:
  __device__ const LaneSource<kRepeat>& gate() const { return Base::feat; }  // the rows that are gathered

  // What an edge reads.
  struct Edge {
    Row gate[kRepeat], gate_edge[kRepeat], grad_edge[kRepeat];
    Far far[kRepeat];
    Shift shift[kRepeat];
    EdgeValue edge_value[kRepeat];
  };

  // Adds kEdges edges of every group, those at `start` and after of a chunk of which the team has `left` edges, and
  // writes the gradients of theirs. All loads are issued before the first sum. If the batch is not kFull, a place past
  // the last edge reads rows that are there, adds 0 and writes nothing.
  template <int kEdges, bool kFull>
  __device__ void add_batch(const Team& team, const ChunkIds& ids, int start, int left) {
    Edge edges[kEdges];
    uint32_t id[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int source = team.source + start + u * team.num_groups;
      id[u] = __shfl_sync(kFullMask, ids.edge, source);
      load_edge(__shfl_sync(kFullMask, ids.column, source), id[u], edges[u]);
    }
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const bool keep = kFull || start + u * team.num_groups + team.group < left;
      const char* of_edge = edge.of_row(id[u], args.gather.row_bytes);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        float dz[kVector], gated_grad[kVector];
        add_edge(r, edges[u], keep, dz, gated_grad);
        store_of_edge(2, of_edge, r, keep, dz);
        if constexpr (Config::kEdgeValues && !kBySrc) store_of_edge(4, of_edge, r, keep, gated_grad);
      }
    }
  }

  // Stores vector r of an edge in the k-th array, if there is one.
  __device__ void store_of_edge(int k, const char* of_edge, int r, bool keep, const float (&values)[kVector]) const {
    const char* target = edge.at(of_edge + args.edges.distance[k], r);
    store_rounded_if<T>(keep && args.edges.exists[k] && slice.has(r, args.gather), const_cast<char*>(target), values);
  }

  __device__ void load_edge(uint32_t column, uint32_t id, Edge& to) const {
    const auto vectors = static_cast<uint32_t>(args.gather.num_vectors);
    const char* gate_row = gate().of_row(column, args.gather.row_bytes);
    const char* far_row = far.of_row(column, vectors * Far::kBytes);
    const char* shift_row = shift.of_row(column, vectors * Shift::kBytes);
    const char* of_edge = edge.of_row(id, args.gather.row_bytes);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      to.gate[r] = Row::load(gate().at(gate_row, r));
      to.far[r] = Far::load(far.at(far_row, r));
      if constexpr (Config::kShifts && kBySrc) {
        to.shift[r] = args.shift != nullptr ? Shift::load(shift.at(shift_row, r)) : Shift{};
      }
      to.gate_edge[r] = load_edge_row<Row>(args.edges, 0, edge, of_edge, r);
      if constexpr (Config::kEdgeValues) {
        to.edge_value[r] = load_given_edge_row<EdgeValue>(args.edges, 3, edge, of_edge, r);
      }
      to.grad_edge[r] = load_edge_row<Row>(args.edges, 1, edge, of_edge, r);
    }
  }

  // Adds vector r of an edge to the sums, unless it is not to be kept, and leaves the gradients of its z and its value.
  __device__ void add_edge(int r, const Edge& of_edge, bool keep, float (&dz)[kVector], float (&gated_grad)[kVector]) {
    float z[kVector], x[kVector], g[kVector], s[kVector];
    add_gates(own_gate[r], of_edge.gate[r], of_edge.gate_edge[r], z);
    of_edge.grad_edge[r].widen(dz);
    own[r].widen(kBySrc ? x : g);
    of_edge.far[r].widen(kBySrc ? g : x);
    if constexpr (Config::kEdgeValues) of_edge.edge_value[r].add_to(x);
    if constexpr (Config::kShifts) (kBySrc ? of_edge.shift[r] : own_shift[r]).widen(s);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const Gate found = gate_of<T>(z[i]);
      const float slope_of = Config::kShifts ? fmaf(g[i], x[i], -s[i]) : g[i] * x[i];
      dz[i] = fmaf(found.slope, slope_of, dz[i]);
      sum.run[r][i] += keep ? dz[i] : 0.f;
      gated_grad[i] = found.value * g[i];
      if constexpr (kBySrc) sum.run[kRepeat + r][i] += keep ? gated_grad[i] : 0.f;
    }
  }

  __device__ void store(void* out, float* partial, int first, uint32_t line, bool writes, bool is_piece) const {
    float part[kRepeat][kVector];
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) part[r][i] = sum.run[first + r][i];
    }
    const bool wanted = writes && out != nullptr;
    if (is_piece) return store_sums<Config>(partial, line, wanted, args.gather, slice, part);
    store_sums<Config>(static_cast<T*>(out), line, wanted, args.gather, slice, part);
  }
};

template <class Config>
__global__ void __launch_bounds__(kGatherThreads, Config::kMinBlocks)
    gated_sum_backward_kernel(const GatedBackwardKernelArgs args) {
  walk_unit<GateGradientLane<Config>>(args);
}

// Of vectors of kVector elements, kRepeat per lane.
template <bool kEdgeValues, typename T, typename G, int kVector, int kRepeat>
cudaError_t gated_backward_of_vectors(const GatedSumBackwardArgs& args, const GatedBackwardKernelArgs& kernel_args,
                                      const GatherShape& shape, const Launch& launch) {
  const auto start = [&](auto by_src) {
    using Config = GateGradientConfig<decltype(by_src)::value, T, G, kVector, kRepeat, kEdgeValues>;
    return launch_rows<Config>(gated_sum_backward_kernel<Config>, args.topology, shape, kernel_args, launch);
  };
  return args.by_src ? start(std::true_type{}) : start(std::false_type{});
}

template <typename T, typename G>
cudaError_t gated_sum_backward_with(const GatedSumBackwardArgs& args, const GatedBackwardKernelArgs& kernel_args,
                                    const GatherShape& shape, const Launch& launch) {
  const auto fits = [&](int64_t count) {
    return args.dim % count == 0 &&
           are_aligned(count * static_cast<int64_t>(sizeof(T)), args.value, args.gate_src, args.gate_dst,
                       args.gate_edge, args.edge_value, args.grad_edges, args.grad_value, args.grad_gate,
                       args.grad_gate_edge, args.grad_edge_value) &&
           are_aligned(count * static_cast<int64_t>(sizeof(G)), args.grad) &&
           are_aligned(count * static_cast<int64_t>(sizeof(float)), args.shift);
  };
  return with_gated_vector<sizeof(G)>(fits, [&](auto vector, auto repeat) {
    constexpr int kVector = decltype(vector)::value, kRepeat = decltype(repeat)::value;
    if (args.edge_value != nullptr) {
      return gated_backward_of_vectors<true, T, G, kVector, kRepeat>(args, kernel_args, shape, launch);
    }
    return gated_backward_of_vectors<false, T, G, kVector, kRepeat>(args, kernel_args, shape, launch);
  });
}

template <typename T>
cudaError_t gated_sum_backward_of(const GatedSumBackwardArgs& args, const GatedBackwardKernelArgs& kernel_args,
                                  const GatherShape& shape, const Launch& launch) {
  return args.grad_type == args.type ? gated_sum_backward_with<T, T>(args, kernel_args, shape, launch)
                                     : gated_sum_backward_with<T, float>(args, kernel_args, shape, launch);
}

}  // namespace halfgnn::cuda
