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

AttentionProblem problem_of(PairScore score, PairPass pass, const PairShape& shape, int64_t num_rows,
                            int64_t num_edges) {
  const bool is_aligned = shape.vector * size_of(shape.type) == kMaxAccessBytes;
  return {shape.heads,   shape.dim, size_of(shape.type), is_aligned,
          of_plan(pass), num_rows,  num_edges,           score == PairScore::kLeaky};
}

// What edges add to a pass, or have left to it.
AttentionTerms terms_of(PairPass pass, const PairEdgeArgs& edge) {
  if (edge.has_rows() || edge.columns.count > kMaxTensorColumns) return AttentionTerms::kOther;
  if (edge.has_columns()) return AttentionTerms::kColumns;
  return edge.any() || pass == PairPass::kRecordedSources ? AttentionTerms::kBias : AttentionTerms::kNone;
}

bool takes_tensor_cores(PairScore score, PairPass pass, const PairArgs& args, const PairShape& shape) {
  const bool has_records = pass == PairPass::kRecordingDestinations || pass == PairPass::kRecordedSources;
  if (score == PairScore::kLeaky && (has_records || args.edge.any())) return false;
  const Rows& rows = args.units.rows;
  AttentionProblem problem = problem_of(score, pass, shape, rows.num_rows, rows.num_edges);
  problem.terms = terms_of(pass, args.edge);
  return takes_tensor_cores(wanted_tensor_cores(), compute_major(), problem);
}

template <class Score, class Edges, typename T>
cudaError_t run_pass_of(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  if constexpr (sizeof(T) == 2 && Edges::has_tensor_kernels(Score::kScore)) {
    if (takes_tensor_cores(Score::kScore, pass, args, shape)) {
      return pair_on_tensor<Score, Edges, T>(pass, args, shape, launch);
    }
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
    return problem_of(PairScore::kLeaky, pass, shape, topology.num_rows, topology.num_edges);
  };
  return takes_edge_records({wanted_tensor_cores(), compute_major(), current_device()},
                            of(PairPass::kDestinations, destinations), of(PairPass::kSources, sources), record_bytes);
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
