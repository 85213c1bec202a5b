// Gradients of the columns that edges add to dot attention, from the records that the pass to destinations leaves:
//   df_e = sum over heads of scale dl_e query[v] + a_e m_e grad[v], rows of columns of the destination v and the head
// A warp takes 32 positions at a time. Lanes share an edge, kPairColumns columns each, and have kColumnEdges edges in
// flight. Include only where it is instantiated.
#pragma once

#include <algorithm>

#include "../../plan/units.h"
#include "pass.h"

namespace halfgnn::cuda {

constexpr int kColumnWarps = 4, kColumnThreads = kColumnWarps * kWarpSize;
constexpr int kColumnEdges = 2;

struct ColumnGradientArgs {
  Rows rows;
  Ids edge_ids;
  const char* records;  // (E, heads) of float2: a_e m_e and dl_e
  const float* query;   // (rows, heads, columns)
  const float* grad;    // (rows, heads, columns)
  float scale;
  int32_t heads, columns;
  int32_t log2_lanes;  // that share an edge: at least 2, so that a chunk has no fewer edges than are in flight
  int32_t chunks;      // of a warp
  void* grad_feat;
};

// The gradients of kColumnEdges edges, of one lane's columns.
template <typename T>
class ColumnGradients {
  using Columns = Fragment<float, kPairColumns>;

 public:
  // column: the lane's first.
  __device__ ColumnGradients(const ColumnGradientArgs& args, int column)
      : args_(args), column_(static_cast<uint32_t>(column)) {}

  __device__ void add_heads(const uint32_t (&rows)[kColumnEdges], const uint32_t (&edges)[kColumnEdges]) {
    const float *query = args_.query + column_, *grad = args_.grad + column_;
    const auto* records = reinterpret_cast<const float2*>(args_.records);
    const auto row_elements = static_cast<uint32_t>(args_.heads * args_.columns);
#pragma unroll 1
    for (int head = 0; head < args_.heads; ++head) {
      float2 factors[kColumnEdges];
      Columns queries[kColumnEdges] = {}, grads[kColumnEdges] = {};
#pragma unroll
      for (int u = 0; u < kColumnEdges; ++u) {
        const uint64_t row = uint64_t{rows[u]} * row_elements;
        factors[u] = __ldg(records + uint64_t{edges[u]} * static_cast<uint32_t>(args_.heads));
        if (args_.query != nullptr) queries[u] = Columns::load(query + row);
        if (args_.grad != nullptr) grads[u] = Columns::load(grad + row);
      }
#pragma unroll
      for (int u = 0; u < kColumnEdges; ++u) {
        queries[u].multiply_add_to(args_.scale * factors[u].y, gradient_[u]);
        grads[u].multiply_add_to(factors[u].x, gradient_[u]);
      }
      ++records;
      query += args_.columns;
      grad += args_.columns;
    }
  }

  __device__ void store(int u, uint32_t edge) const {
    const uint64_t at = uint64_t{edge} * static_cast<uint32_t>(args_.columns) + column_;
    store_rounded(static_cast<T*>(args_.grad_feat) + at, gradient_[u]);
  }

 private:
  const ColumnGradientArgs& args_;
  const uint32_t column_;
  float gradient_[kColumnEdges][kPairColumns] = {};
};

template <typename T>
__global__ void __launch_bounds__(kColumnThreads) column_gradient_kernel(const ColumnGradientArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kColumnWarps + threadIdx.x / kWarpSize;
  const int64_t first = unit * args.chunks * kWarpSize, num_edges = args.rows.num_edges;
  if (first >= num_edges) return;  // whole warps
  const int64_t past = first + static_cast<int64_t>(args.chunks) * kWarpSize;
  const int64_t last = past < num_edges ? past : num_edges;
  const int own = (lane & ((1 << args.log2_lanes) - 1)) * kPairColumns;
  const bool exists = own < args.columns;
  const int edges_at_once = kWarpSize >> args.log2_lanes;
  RowsOfEdges rows(args.rows, first, lane);
#pragma unroll 1
  for (int64_t begin = first; begin < last; begin += kWarpSize) {
    const int count = static_cast<int>(last - begin < kWarpSize ? last - begin : kWarpSize);
    const auto own_row = static_cast<uint32_t>(rows.next(begin));
    const uint32_t own_edge = args.edge_ids.id(begin + (lane < count ? lane : count - 1));
#pragma unroll 1
    for (int start = lane >> args.log2_lanes; start - (lane >> args.log2_lanes) < count;
         start += kColumnEdges * edges_at_once) {
      uint32_t row_of[kColumnEdges], edge_of[kColumnEdges];
#pragma unroll
      for (int u = 0; u < kColumnEdges; ++u) {
        row_of[u] = __shfl_sync(kFullMask, own_row, start + u * edges_at_once);
        edge_of[u] = __shfl_sync(kFullMask, own_edge, start + u * edges_at_once);
      }
      ColumnGradients<T> gradients(args, exists ? own : 0);
      gradients.add_heads(row_of, edge_of);
#pragma unroll
      for (int u = 0; u < kColumnEdges; ++u) {
        if (exists && start + u * edges_at_once < count) gradients.store(u, edge_of[u]);
      }
    }
  }
}

template <typename T>
cudaError_t column_gradients_of(const PairArgs& pass, void* grad_feat, const Launch& launch) {
  const PairColumnArgs& columns = pass.edge.columns;
  const Rows& rows = pass.units.rows;
  const int chunks = term_chunks(rows.num_edges);
  const ColumnGradientArgs args{rows,
                                pass.edge_ids,
                                pass.edge_records.data,
                                columns.query,
                                columns.grad,
                                pass.logit.linear,
                                pass.layout.heads,
                                static_cast<int32_t>(columns.count),
                                std::max(log2_ceil(columns.count / kPairColumns), log2_ceil(kColumnEdges)),
                                chunks,
                                grad_feat};
  const int64_t blocks = ceil_div(rows.num_edges, int64_t{kColumnThreads} * chunks);
  return cuda::launch(column_gradient_kernel<T>, blocks, kColumnThreads, launch.stream, args);
}

}  // namespace halfgnn::cuda
