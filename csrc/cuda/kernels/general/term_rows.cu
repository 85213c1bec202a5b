// Terms summed over the edges of each row.

#include "../core/combine.h"
#include "../core/running_sum.cuh"
#include "term.cuh"

namespace halfgnn::cuda {
namespace {

// Runs join a total in fp32, without what rounding lost.
template <int kVector>
__device__ void fold(float (&run)[kVector], float (&total)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    total[i] += run[i];
    run[i] = 0.f;
  }
}

// The sums of a lane's terms over the edges of a piece. The whole warp takes part.
template <class Config>
__device__ void sum_piece(const RowTermsArgs& args, const TermLane<Config>& lane, const Piece& piece, int own_lane,
                          float (&total)[Config::kVector]) {
  const Term& term = args.term;
  const uint32_t terms_per_batch = Config::kEdges * (term.num_sums / lane.sum_step + 1);
  float run[Config::kVector] = {};
  uint32_t run_length = 0;
  for_each_term_batch(term, args.indices, args.edge_ids, lane, piece, Config::kWinner, own_lane,
                      [&](const TermEdges<Config>& edges, int, int first, int count) {
                        for_each_summed(term, lane, [&](const uint32_t (&offset)[Config::kInputs], bool exists) {
                          float terms[Config::kEdges][Config::kVector];
                          form_terms<Config>(term, edges, offset, terms);
#pragma unroll
                          for (int e = 0; e < Config::kEdges; ++e) {
                            const bool counts = exists && first + e * lane.num_groups < count;
#pragma unroll
                            for (int i = 0; i < Config::kVector; ++i) run[i] += counts ? terms[e][i] : 0.f;
                          }
                        });
                        run_length += terms_per_batch;
                        if (run_length >= kRun) {
                          fold(run, total);
                          run_length = 0;
                        }
                      });
  fold(run, total);
}

template <class Config>
__global__ void __launch_bounds__(kTermThreads, Config::kMinBlocks) row_terms_kernel(const RowTermsArgs args) {
  const Term& term = args.term;
  const int own_lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t unit = static_cast<int64_t>(blockIdx.x % args.slice_blocks) * kTermWarps + warp;
  if (unit >= args.rows.num_units()) return;  // whole warps
  Piece piece;
  if (!find_piece(args.rows, unit, own_lane, piece)) return;

  const TermLane<Config> lane(term, own_lane, blockIdx.x / args.slice_blocks);
  float sum[Config::kVector] = {};
  sum_piece(args, lane, piece, own_lane, sum);
  if (term.vectors_in_sum) fold_vector(sum);
  sum_over_lanes(term.log2_result_lanes, 5, term.vectors_in_sum, sum);
  if (!lane.stores || lane.group != 0) return;
  const int64_t first = int64_t{piece.line} * term.num_results + lane.result;
  if (!piece.is_whole_row) {
    return store_results(args.partial, DType::kFloat, first, term.vectors_in_sum, sum);
  }
  if (args.divide_by_degree && !piece.is_empty()) {
#pragma unroll
    for (int i = 0; i < Config::kVector; ++i) sum[i] /= static_cast<float>(piece.num_edges());
  }
  store_results(args.out, args.out_type, first, term.vectors_in_sum, sum);
}

}  // namespace

cudaError_t terms_by_row(const Topology& topology, const Term& term, bool divide_by_degree, void* out, DType out_type,
                         const Launch& launch) {
  const Rows rows = rows_of(topology);
  const int64_t slice_blocks = ceil_div(rows.num_units(), kTermWarps);
  if (term.num_results == 0 || rows.num_rows == 0) return cudaSuccess;
  if (slice_blocks > INT32_MAX) return cudaErrorInvalidValue;
  auto* partial = static_cast<float*>(launch.workspace);
  const RowTermsArgs args{term,
                          rows,
                          indices_of(topology),
                          edge_ids_of(topology),
                          divide_by_degree,
                          out,
                          out_type,
                          partial,
                          static_cast<uint32_t>(slice_blocks)};
  const cudaError_t status = with_term_config(term, [&](auto config) {
    return cuda::launch(row_terms_kernel<decltype(config)>, slice_blocks * term.slices, kTermThreads, launch.stream,
                        args);
  });
  if (status != cudaSuccess) return status;
  return combine({rows, partial, term.num_results, 1.f, divide_by_degree, out, out_type}, launch);
}

}  // namespace halfgnn::cuda
