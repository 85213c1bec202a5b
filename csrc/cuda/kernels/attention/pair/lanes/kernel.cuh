// The kernel behind GATv2 and dot attention. Include only where it is instantiated (<attention>_<type>.cu).
//
// A warp walks a row or a piece of one, and gathers rows of keys and values, several edges in flight (lane.cuh).
// Lanes that share a head sum up their parts of the dots of all those edges together, so that a few lanes of a head end
// up with the dots of one edge each: the edge's owners (frame.cuh). They work out what the edge's rows are
// multiplied by, once per edge and head (weights.cuh), and hand it to all lanes, which add the rows that they
// still hold to the row's sums (sums.cuh).
//
// Heads too wide for registers are walked in tiles, twice: first the dots are summed up in the workspace, then rows are
// added up by what they say.
#pragma once

#include "lane.cuh"

namespace halfgnn::cuda {

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) pair_attention_kernel(const PairArgs args) {
  using Lane = PairLane<Config>;
  using Frame = PairFrame<Config>;
  __shared__ typename Lane::SharedRuns runs;
  __shared__ typename Lane::Shared shared;
  __shared__ typename Lane::SharedProducts products;
  __shared__ typename Lane::SharedProjection projection;
  Lane work(args, runs, shared, products, projection);
  uint32_t unit = Frame::first_unit(args);
  while (unit < args.units.num_units) {
    for_each_piece(args.units, unit, Frame::lane(), [&](const Piece& piece) { work.run(piece); });
    if constexpr (!Config::kTakesTurns) break;
    unit += Frame::num_warps(args);
  }
  if constexpr (Config::kWritesProducts && !Config::kTiled) work.write_products();
}

template <class Config>
cudaError_t launch_pair(const PairArgs& args, const Launch& launch) {
  const int64_t blocks = static_cast<int64_t>(args.blocks_per_slice) * args.layout.slices;
  return cuda::launch(pair_attention_kernel<Config>, blocks, Config::kThreads, launch.stream, args);
}

// With records of edges: rows of GATv2 whose vectors are whole, one per lane.
template <template <typename, int, int> class Score, typename T, PairPass kPass>
cudaError_t pair_recorded_pass(const PairArgs& args, const Launch& launch) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  if constexpr (Score<T, widest, 1>::kKind == PairKind::kGatv2) {
    return launch_pair<PairConfig<Score, T, kPass, widest, 1, false>>(args, launch);
  } else {
    return cudaErrorInvalidValue;
  }
}

// With terms of edges, of the same rows.
template <template <typename, int, int> class Score, typename T, PairPass kPass>
cudaError_t pair_edges_pass(const PairArgs& args, const Launch& launch) {
  if (args.edge.has_rows()) return launch_pair<PairEdgeConfig<Score, T, kPass, true>>(args, launch);
  return launch_pair<PairEdgeConfig<Score, T, kPass, false>>(args, launch);
}

template <template <typename, int, int> class Score, typename T, PairPass kPass>
cudaError_t pair_attention_pass(const PairArgs& args, const PairShape& shape, const Launch& launch) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  if (shape.vector == widest) {
    if (shape.repeat == 4) return launch_pair<PairConfig<Score, T, kPass, widest, 4, false>>(args, launch);
    return launch_pair<PairConfig<Score, T, kPass, widest, 1, false>>(args, launch);
  }
  if (shape.tiled) return launch_pair<PairConfig<Score, T, kPass, 1, 4, true>>(args, launch);
  return launch_pair<PairConfig<Score, T, kPass, 1, 4, false>>(args, launch);
}

template <template <typename, int, int> class Score, typename T>
cudaError_t pair_attention(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  switch (pass) {
    case PairPass::kForward: return pair_attention_pass<Score, T, PairPass::kForward>(args, shape, launch);
    case PairPass::kDestinations: return pair_attention_pass<Score, T, PairPass::kDestinations>(args, shape, launch);
    case PairPass::kSources: return pair_attention_pass<Score, T, PairPass::kSources>(args, shape, launch);
    case PairPass::kRecordingDestinations:
      return pair_recorded_pass<Score, T, PairPass::kRecordingDestinations>(args, launch);
    default: return pair_recorded_pass<Score, T, PairPass::kRecordedSources>(args, launch);
  }
}

}  // namespace halfgnn::cuda
