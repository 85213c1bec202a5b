// The kernel behind GATv2 and dot attention that takes all shapes. Include only where it is instantiated.
//
// A warp walks a row or a piece of one, and gathers rows of keys and values, several edges in flight (lane.cuh). Lanes
// that share a head sum up their parts of the dots of all those edges together, so that a few lanes of a head end up
// with the dots of one edge each: the edge's owners (frame.cuh). They work out what the edge's rows are multiplied by,
// once per edge and head (weights.cuh), and hand it to all lanes, which add the rows that they still hold to the row's
// sums (sums.cuh).
//
// Heads too wide for registers are walked in tiles, twice: first the dots are summed up in the workspace, then rows are
// added up by what they say.
#pragma once

#include "../dispatch.h"
#include "edge_columns.cuh"
#include "edge_rows.cuh"
#include "lane.cuh"
#include "projection.cuh"
#include "score_dot.cuh"
#include "score_leaky.cuh"

namespace halfgnn::cuda {

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::min_blocks()) pair_attention_kernel(const PairArgs args) {
  using Lane = PairLane<Config>;
  using Frame = PairFrame<Config>;
  __shared__ typename Lane::SharedRuns runs;
  __shared__ typename Lane::Shared shared;
  __shared__ typename Lane::SharedProducts products;
  __shared__ typename Lane::SharedEdges edges;
  Lane work(args, runs, shared, products, edges);
  uint32_t unit = Frame::first_unit(args);
  while (unit < args.units.num_units) {
    for_each_piece(args.units, unit, Frame::lane(), [&](const Piece& piece) { work.run(piece); });
    if constexpr (!Config::kTakesTurns) break;
    unit += Frame::num_warps(args);
  }
  work.write_products();
}

template <class Config>
cudaError_t launch_lanes(const PairArgs& args, const Launch& launch) {
  const int64_t blocks = static_cast<int64_t>(args.blocks_per_slice) * args.layout.slices;
  return cuda::launch(pair_attention_kernel<Config>, blocks, Config::kThreads, launch.stream, args);
}

// Rows as `shape` says: whole vectors, one or four per lane, or single elements, in tiles if heads are wider. Only the
// first of these have terms or records of edges.
template <class Score, class Edges, typename T, PairPass kPass>
cudaError_t launch_lanes_of(const PairArgs& args, const PairShape& shape, const Launch& launch) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  constexpr bool has_records = kPass == PairPass::kRecordingDestinations || kPass == PairPass::kRecordedSources;
  if constexpr (!has_pass(Score::kScore, Edges::kHasTerms, kPass)) {
    return cudaErrorInvalidValue;
  } else if constexpr (Edges::kHasTerms || has_records) {
    return launch_lanes<PairConfig<Score, Edges, T, kPass, widest, 1, false>>(args, launch);
  } else if (shape.vector == widest) {
    if (shape.repeat == 4) return launch_lanes<PairConfig<Score, Edges, T, kPass, widest, 4, false>>(args, launch);
    return launch_lanes<PairConfig<Score, Edges, T, kPass, widest, 1, false>>(args, launch);
  } else {
    if (shape.tiled) return launch_lanes<PairConfig<Score, Edges, T, kPass, 1, 4, true>>(args, launch);
    return launch_lanes<PairConfig<Score, Edges, T, kPass, 1, 4, false>>(args, launch);
  }
}

template <class Score, class Edges, typename T>
cudaError_t pair_on_lanes(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  switch (pass) {
    case PairPass::kForward: return launch_lanes_of<Score, Edges, T, PairPass::kForward>(args, shape, launch);
    case PairPass::kDestinations: return launch_lanes_of<Score, Edges, T, PairPass::kDestinations>(args, shape, launch);
    case PairPass::kSources: return launch_lanes_of<Score, Edges, T, PairPass::kSources>(args, shape, launch);
    case PairPass::kRecordingDestinations:
      return launch_lanes_of<Score, Edges, T, PairPass::kRecordingDestinations>(args, shape, launch);
    default: return launch_lanes_of<Score, Edges, T, PairPass::kRecordedSources>(args, shape, launch);
  }
}

}  // namespace halfgnn::cuda
