// Gradients of the columns that edges add to dot attention, from the records that the pass to destinations leaves:
//   df_e = sum over heads of scale dl_e query[v] + a_e m_e grad[v], rows of columns of the destination v and the head
// A warp takes 32 positions at a time, and lanes walk their (edge, kPairColumns columns) pairs. Include only where it
// is instantiated.
#pragma once

#include "../plan/units.h"
#include "pair_pass.h"

namespace halfgnn::cuda {

constexpr int kColumnWarps = 4, kColumnThreads = kColumnWarps * kWarpSize;

struct ColumnGradientArgs {
  Rows rows;
  Ids edge_ids;
  const char* records;  // (E, heads) of float2: a_e m_e and dl_e
  const float* query;   // (rows, heads, columns)
  const float* grad;    // likewise
  float scale;
  int32_t heads, columns;
  int32_t chunks;  // of a warp
  void* grad_feat;
};

template <typename T>
__global__ void __launch_bounds__(kColumnThreads) column_gradient_kernel(const ColumnGradientArgs args) {
  using Columns = Fragment<float, kPairColumns>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kColumnWarps + threadIdx.x / kWarpSize;
  const int64_t first = unit * args.chunks * kWarpSize, num_edges = args.rows.num_edges;
  if (first >= num_edges) return;  // whole warps
  const int64_t past = first + static_cast<int64_t>(args.chunks) * kWarpSize;
  const int64_t last = past < num_edges ? past : num_edges;
  const int vectors = args.columns / kPairColumns;
  RowsOfEdges rows(args.rows, first, lane);
#pragma unroll 1
  for (int64_t begin = first; begin < last; begin += kWarpSize) {
    const int count = static_cast<int>(last - begin < kWarpSize ? last - begin : kWarpSize);
    const auto own_row = static_cast<uint32_t>(rows.next(begin));
    const uint32_t own_edge = args.edge_ids.id(begin + (lane < count ? lane : count - 1));
#pragma unroll 1
    for (int start = 0; start < count * vectors; start += kWarpSize) {
      const int pair = start + lane, place = pair / vectors;  // of a place past the last edge, the last one's
      const int read = place < count ? place : count - 1, column = pair % vectors * kPairColumns;
      const uint64_t row = uint64_t{__shfl_sync(kFullMask, own_row, read)} * args.heads * args.columns + column;
      const uint32_t edge = __shfl_sync(kFullMask, own_edge, read);
      const float2* record = reinterpret_cast<const float2*>(args.records) + uint64_t{edge} * args.heads;
      float gradient[kPairColumns] = {};
#pragma unroll 2
      for (int head = 0; head < args.heads; ++head) {
        const float2 factors = __ldg(record + head);
        const uint64_t at = row + static_cast<uint32_t>(head * args.columns);
        if (args.query != nullptr) Columns::load(args.query + at).multiply_add_to(args.scale * factors.y, gradient);
        if (args.grad != nullptr) Columns::load(args.grad + at).multiply_add_to(factors.x, gradient);
      }
      if (place >= count) continue;
      store_rounded(static_cast<T*>(args.grad_feat) + uint64_t{edge} * args.columns + column, gradient);
    }
  }
}

template <typename T>
cudaError_t column_gradients_of(const PairArgs& pass, void* grad_feat, const Launch& launch) {
  const PairColumnArgs& columns = pass.edge.columns;
  const Rows& rows = pass.units.rows;
  const int chunks = term_chunks(rows.num_edges);
  const ColumnGradientArgs args{
      rows,         pass.edge_ids,     pass.edge_records.data, columns.query,
      columns.grad, pass.logit.linear, pass.layout.heads,      static_cast<int32_t>(columns.count),
      chunks,       grad_feat};
  const int64_t blocks = ceil_div(rows.num_edges, int64_t{kColumnThreads} * chunks);
  return cuda::launch(column_gradient_kernel<T>, blocks, kColumnThreads, launch.stream, args);
}

}  // namespace halfgnn::cuda
