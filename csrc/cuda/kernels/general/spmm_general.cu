// The launcher of spmm_general.h, and the kernel for maxima and minima of terms. Sums are terms_by_row.

#include "spmm_general.h"

#include "../core/combine.h"
#include "../spmm/combine_extrema.h"
#include "term.cuh"
#include "term_ops.h"

namespace halfgnn::cuda {
namespace {

struct RowExtremaArgs {
  Term term;
  Rows rows;
  Ids indices;
  ExtremumOut result;
  float* partial;              // best value of each slot and element
  uint32_t* partial_position;  // and its position
  uint32_t slice_blocks;
};

template <class Config>
struct Extrema {
  float best[Config::kVector];
  uint32_t position[Config::kVector];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < Config::kVector; ++i) {
      best[i] = -INFINITY;
      position[i] = kNoPosition;
    }
  }

  // Looks at all edges of a piece. A place past the last edge looks at that one again, which changes nothing. The whole
  // warp takes part.
  __device__ void look_at(const RowExtremaArgs& args, const TermLane<Config>& lane, const Piece& piece, int own_lane) {
    const Term& term = args.term;
    const auto look_at_batch = [&](const TermEdges<Config>& edges, int chunk, int first, int count) {
      float terms[Config::kEdges][Config::kVector];
      form_terms<Config>(term, edges, lane.offset, terms);
#pragma unroll
      for (int e = 0; e < Config::kEdges; ++e) {
        const int wanted = first + e * lane.num_groups;
        take(args.result.negate, terms[e], piece.begin + chunk + (wanted < count ? wanted : count - 1));
      }
    };
    for_each_term_batch(term, args.indices, args.result.edge_ids, lane, piece, false, own_lane, look_at_batch);
  }
  __device__ void take(bool negate, const float (&terms)[Config::kVector], uint32_t at) {
#pragma unroll
    for (int i = 0; i < Config::kVector; ++i) take_better(negate ? -terms[i] : terms[i], at, best[i], position[i]);
  }

  // Every group ends up with the best of all. The whole warp takes part.
  __device__ void best_of_groups(const Term& term) {
#pragma unroll 1
    for (int distance = 1 << term.log2_result_lanes; distance < kWarpSize; distance *= 2) {
#pragma unroll
      for (int i = 0; i < Config::kVector; ++i) {
        const float value = __shfl_xor_sync(kFullMask, best[i], distance);
        const uint32_t at = __shfl_xor_sync(kFullMask, position[i], distance);
        take_better(value, at, best[i], position[i]);
      }
    }
  }
};

template <class Config>
__global__ void __launch_bounds__(kTermThreads, Config::kMinBlocks) row_extrema_kernel(const RowExtremaArgs args) {
  const int own_lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t unit = static_cast<int64_t>(blockIdx.x % args.slice_blocks) * kTermWarps + warp;
  if (unit >= args.rows.num_units()) return;  // whole warps
  Piece piece;
  if (!find_piece(args.rows, unit, own_lane, piece)) return;

  const TermLane<Config> lane(args.term, own_lane, blockIdx.x / args.slice_blocks);
  Extrema<Config> extrema;
  extrema.clear();
  extrema.look_at(args, lane, piece, own_lane);
  extrema.best_of_groups(args.term);
  if (!lane.stores || lane.group != 0) return;
  const int64_t first = int64_t{piece.line} * args.term.num_results + lane.result;
  if (piece.is_whole_row) return store_extrema(args.result, first, !piece.is_empty(), extrema.best, extrema.position);
  store_rounded(args.partial + first, extrema.best);
  store_words(args.partial_position + first, extrema.position);
}

cudaError_t extrema_by_row(const SpmmArgs& args, Term term, const Launch& launch) {
  const Rows rows = rows_of(args.topology);
  const int64_t slice_blocks = ceil_div(rows.num_units(), kTermWarps);
  if (term.num_results == 0 || rows.num_rows == 0) return cudaSuccess;
  if (slice_blocks > INT32_MAX) return cudaErrorInvalidValue;
  const ExtremumOut result{edge_ids_of(args.topology), args.reduce == Reduce::kMin, args.out, args.out_type, args.arg,
                           args.topology.is_int64};
  auto* partial = static_cast<float*>(launch.workspace);
  auto* partial_position = static_cast<uint32_t*>(launch.workspace) + rows.num_slots * term.num_results;
  const RowExtremaArgs kernel_args{
      term, rows, indices_of(args.topology), result, partial, partial_position, static_cast<uint32_t>(slice_blocks)};
  const auto run = [&](auto config) {
    return cuda::launch(row_extrema_kernel<decltype(config)>, slice_blocks * term.slices, kTermThreads, launch.stream,
                        kernel_args);
  };
  const cudaError_t status = with_term_vector<2, false, false>(term, run);
  if (status != cudaSuccess) return status;
  return combine_extrema({rows, partial, partial_position, term.num_results, result}, launch);
}

}  // namespace

size_t spmm_general_workspace(const SpmmArgs& args) {
  return (is_argument_reduce(args.reduce) ? 2 : 1) * terms_by_row_workspace(args.topology, args.out_len);
}

cudaError_t spmm_general(const SpmmArgs& args, const Launch& launch) {
  const bool extrema = is_argument_reduce(args.reduce);
  const bool fits_out = fits_term_vector(args.out, size_of(args.out_type)) &&
                        (!extrema || fits_term_vector(args.arg, args.topology.is_int64 ? 8 : 4));
  Term term;
  if (!plan_forward(args.op, args.lhs, args.rhs, args.broadcast, fits_out, term)) return cudaErrorInvalidValue;
  if (extrema && term.num_inputs != 2) return cudaErrorInvalidValue;  // copies have a kernel of their own
  if (extrema) return extrema_by_row(args, term, launch);
  return terms_by_row(args.topology, term, args.reduce == Reduce::kMean, args.out, args.out_type, launch);
}

}  // namespace halfgnn::cuda
