// Dot attention on tensor cores: what its launcher (dot_attention.cuh) tells the rest. It takes the passes of
// pair/pass.h, of the same arguments and with the same results, in the shapes that plan/tensor_cores.h names.
#pragma once

#include "../pass.h"

namespace halfgnn::cuda {

// One pass over elements of a half type. The build instantiates them: build_sources.py.
template <typename T>
cudaError_t dot_tensor_of(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch);

// The same of dot_edges_of's kForward and kRecordingDestinations, where edges add a bias or at most kMaxTensorColumns
// columns.
template <typename T>
cudaError_t dot_tensor_edges_of(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch);

// Whether the current device has tensor cores that multiply halves as core/mma.cuh says.
bool has_tensor_cores();

// Whether tensor cores serve the pass of either attention, and are worth it on the current device.
bool takes_tensor_cores(PairKind kind, PairPass pass, const PairArgs& args, const PairShape& shape);

// Whether GATv2's backward is to keep records of edges, if there is memory for them.
bool takes_edge_records(const PairShape& shape, const Topology& destinations, const Topology& sources);

}  // namespace halfgnn::cuda
