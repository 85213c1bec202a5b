// Terms written once per edge.

#include "../plan/units.h"
#include "term.cuh"

namespace halfgnn::cuda {
namespace {

// The results of up to 32 edges. The whole warp takes part.
template <class Config>
__device__ void store_edges(const EdgeTermsArgs& args, const TermLane<Config>& lane, const TermIds<Config>& ids,
                            int count) {
  const Term& term = args.term;
#pragma unroll 1
  for (int start = 0; start < count; start += Config::kEdges * lane.num_groups) {
    const TermEdges<Config> edges(term, lane, ids, true, start, count);
    float sum[Config::kEdges][Config::kVector] = {};
    for_each_summed(term, lane, [&](const uint32_t (&offset)[Config::kInputs], bool exists) {
      float terms[Config::kEdges][Config::kVector];
      form_terms<Config>(term, edges, offset, terms);
#pragma unroll
      for (int e = 0; e < Config::kEdges; ++e) {
#pragma unroll
        for (int i = 0; i < Config::kVector; ++i) sum[e][i] += exists ? terms[e][i] : 0.f;
      }
    });
#pragma unroll
    for (int e = 0; e < Config::kEdges; ++e) {
      if (term.vectors_in_sum) fold_vector(sum[e]);
      sum_over_lanes(term.log2_result_lanes, term.log2_result_lanes + term.log2_sum_lanes, term.vectors_in_sum, sum[e]);
      if (!lane.stores || start + e * lane.num_groups + lane.group >= count) continue;
#pragma unroll
      for (int i = 0; i < Config::kVector; ++i) sum[e][i] *= term.scale_result ? edges.factor[e] : 1.f;
      const int64_t first = static_cast<int64_t>(edges.edge[e]) * term.num_results;
      store_results(args.out, args.out_type, first + lane.result, term.vectors_in_sum, sum[e]);
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(kTermThreads, Config::kMinBlocks) edge_terms_kernel(const EdgeTermsArgs args) {
  const int own_lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t unit = static_cast<int64_t>(blockIdx.x % args.slice_blocks) * kTermWarps + warp;
  const int64_t first = unit * args.steps * kWarpSize, num_edges = args.rows.num_edges;
  if (first >= num_edges) return;  // whole warps
  const int64_t past = first + static_cast<int64_t>(args.steps) * kWarpSize;
  const int64_t last = past < num_edges ? past : num_edges;

  const TermLane<Config> lane(args.term, own_lane, blockIdx.x / args.slice_blocks);
  RowsOfEdges rows(args.rows, first, own_lane);
  uint32_t next_col = 0, next_edge = 0;
  const auto load_ids = [&](int64_t position) {
    if (args.term.reads_col && position < last) next_col = args.indices.id(position);
    if (position < last) next_edge = args.edge_ids.id(position);
  };
  load_ids(first + own_lane);
#pragma unroll 1
  for (int64_t chunk = first; chunk < last; chunk += kWarpSize) {
    const uint32_t row = args.term.reads_row ? static_cast<uint32_t>(rows.next(chunk)) : 0;
    const TermIds<Config> ids(args.term, row, next_col, next_edge);
    load_ids(chunk + kWarpSize + own_lane);
    store_edges(args, lane, ids, static_cast<int>(last - chunk < kWarpSize ? last - chunk : kWarpSize));
  }
}

}  // namespace

cudaError_t terms_by_edge(const Topology& topology, const Term& term, void* out, DType out_type, const Launch& launch) {
  const Rows rows = rows_of(topology);
  if (term.num_results == 0 || rows.num_edges == 0 || rows.num_rows == 0) return cudaSuccess;
  const int steps = term_chunks(rows.num_edges);
  const int64_t slice_blocks = ceil_div(rows.num_edges, int64_t{kTermThreads} * steps);
  if (slice_blocks > INT32_MAX) return cudaErrorInvalidValue;
  const EdgeTermsArgs args{
      term, rows, indices_of(topology), edge_ids_of(topology), out, out_type, static_cast<uint32_t>(slice_blocks),
      steps};
  return with_term_config(term, [&](auto config) {
    return cuda::launch(edge_terms_kernel<decltype(config)>, slice_blocks * term.slices, kTermThreads, launch.stream,
                        args);
  });
}

}  // namespace halfgnn::cuda
