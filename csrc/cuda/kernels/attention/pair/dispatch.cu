// The choice of dispatch.h.

#include "dispatch.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#include "../../core/types.cuh"
#include "../../plan/device.h"
#include "../../plan/tensor_cores.h"
#include "edges.cuh"
#include "score.cuh"

namespace halfgnn::cuda {
namespace {

// Read at every call: tests compare both kinds of kernel in one process.
TensorCores wanted_tensor_cores() {
  const char* wanted = std::getenv("HALFGNN_TENSOR_CORES");
  if (wanted == nullptr || *wanted == '\0') return TensorCores::kWhereCheaper;
  return std::strcmp(wanted, "0") == 0 ? TensorCores::kNever : TensorCores::kWherePossible;
}

int compute_major() {
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess ? major : 0;
}

AttentionPass of_plan(PairPass pass) {
  switch (pass) {
    case PairPass::kForward: return kForwardPass;
    case PairPass::kDestinations:
    case PairPass::kRecordingDestinations: return kDestinationPass;
    default: return kSourcePass;
  }
}

AttentionProblem problem_of(PairPass pass, const PairShape& shape, int64_t num_rows, int64_t num_edges) {
  const bool is_aligned = shape.vector * size_of(shape.type) == kMaxAccessBytes;
  return {shape.heads, shape.dim, size_of(shape.type), is_aligned, of_plan(pass), num_rows, num_edges};
}

AttentionTerms terms_of(const PairEdgeArgs& edge) {
  if (edge.has_rows() || edge.columns.count > kMaxTensorColumns) return AttentionTerms::kOther;
  return edge.has_columns() ? AttentionTerms::kColumns : AttentionTerms::kBias;
}

// Of dot attention with terms of edges.
bool takes_tensor_cores(PairPass pass, const PairArgs& args, const PairShape& shape) {
  const Rows& rows = args.units.rows;
  AttentionProblem problem = problem_of(pass, shape, rows.num_rows, rows.num_edges);
  problem.terms = terms_of(args.edge);
  return takes_tensor_cores(wanted_tensor_cores(), compute_major(), problem);
}

template <class Score, class Edges, typename T>
cudaError_t run_pass_of(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  if constexpr (sizeof(T) == 2 && Edges::has_tensor_kernels(Score::kScore)) {
    if (takes_tensor_cores(pass, args, shape)) return dot_on_tensor_cores<Edges, T>(pass, args, shape, launch);
  }
  return pair_on_lanes<Score, Edges, T>(pass, args, shape, launch);
}

// ColumnsOf: the policy of columns.
template <class Score, class ColumnsOf, typename T>
cudaError_t run_pass_with(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  const PairEdgeArgs& edge = args.edge;
  if (edge.has_columns()) return run_pass_of<Score, ColumnsOf, T>(pass, args, shape, launch);
  if (edge.has_rows()) return run_pass_of<Score, RowEdges, T>(pass, args, shape, launch);
  if (edge.any()) return run_pass_of<Score, BiasEdges, T>(pass, args, shape, launch);
  return run_pass_of<Score, NoEdges, T>(pass, args, shape, launch);
}

}  // namespace

bool has_tensor_cores() { return compute_major() >= kTensorCoresMajor; }

bool takes_edge_records(const PairShape& shape, const Topology& destinations, const Topology& sources,
                        int64_t record_bytes) {
  const auto of = [&](PairPass pass, const Topology& topology) {
    return problem_of(pass, shape, topology.num_rows, topology.num_edges);
  };
  return takes_edge_records(current_device(), of(PairPass::kDestinations, destinations),
                            of(PairPass::kSources, sources), record_bytes);
}

cudaError_t run_pass(PairScore score, PairPass pass, const PairArgs& args, const PairShape& shape,
                     const Launch& launch) {
  return with_type(shape.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    return score == PairScore::kDot ? run_pass_with<Dot, ColumnEdges, T>(pass, args, shape, launch)
                                    : run_pass_with<Leaky, ProjectedEdges, T>(pass, args, shape, launch);
  });
}

}  // namespace halfgnn::cuda
