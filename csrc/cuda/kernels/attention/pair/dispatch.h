// Which kernel takes a pass of GATv2 or dot attention.
#pragma once

#include "pass.h"

namespace halfgnn::cuda {

// The one place that chooses, by what edges add, what records there are, the shape, and the device.
cudaError_t run_pass(PairScore score, PairPass pass, const PairArgs& args, const PairShape& shape,
                     const Launch& launch);

// Whether the current device has tensor cores that multiply halves as core/mma.cuh says.
bool has_tensor_cores();

// Whether GATv2's backward is to keep records of edges, of so many bytes each, if there is memory for them.
bool takes_edge_records(const PairShape& shape, const Topology& destinations, const Topology& sources,
                        int64_t record_bytes);

// ---- The kernels. Score and Edges are policies of score.cuh and edges.cuh. The build instantiates those that there
// are: build_sources.py.

template <class Score, class Edges, typename T>
cudaError_t pair_on_lanes(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch);

// Dot attention of a half type with a bias or columns, in the shapes that plan/tensor_cores.h names: the same results.
template <class Edges, typename T>
cudaError_t dot_on_tensor_cores(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch);

// Passes that there are. Where edges add terms, a backward leaves records of edges; those of GATv2 may without terms.
constexpr bool has_pass(PairScore score, bool has_terms, PairPass pass) {
  if (pass == PairPass::kForward) return true;
  if (pass == PairPass::kRecordingDestinations) return has_terms || score == PairScore::kLeaky;
  return !has_terms;
}

}  // namespace halfgnn::cuda
