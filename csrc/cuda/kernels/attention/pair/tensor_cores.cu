// The choice of pair/tensor/dot_tensor.h.

#include "tensor/dot_tensor.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#include "../../plan/tensor_cores.h"

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

DotPass of_dot(PairPass pass) {
  switch (pass) {
    case PairPass::kForward: return kForwardDots;
    case PairPass::kDestinations:
    case PairPass::kRecordingDestinations: return kDotsToDestinations;
    default: return kDotsToSources;
  }
}

DotProblem problem_of(PairKind kind, PairPass pass, const PairShape& shape, int64_t num_rows, int64_t num_edges) {
  const bool is_aligned = shape.vector * size_of(shape.type) == kMaxAccessBytes;
  return {shape.heads,  shape.dim, size_of(shape.type), is_aligned,
          of_dot(pass), num_rows,  num_edges,           kind == PairKind::kGatv2};
}

// What edges add to a pass, or have left to it.
DotTerms terms_of(PairPass pass, const PairEdgeArgs& edge) {
  if (edge.has_rows() || edge.columns.count > kMaxTensorColumns) return DotTerms::kOther;
  if (edge.has_columns()) return DotTerms::kColumns;
  return edge.any() || pass == PairPass::kRecordedSources ? DotTerms::kBias : DotTerms::kNone;
}

}  // namespace

bool has_tensor_cores() { return compute_major() >= kTensorCoresMajor; }

bool takes_tensor_cores(PairKind kind, PairPass pass, const PairArgs& args, const PairShape& shape) {
  const Rows& rows = args.units.rows;
  DotProblem problem = problem_of(kind, pass, shape, rows.num_rows, rows.num_edges);
  if (kind == PairKind::kDot) problem.terms = terms_of(pass, args.edge);
  return takes_tensor_cores(wanted_tensor_cores(), compute_major(), problem);
}

bool takes_edge_records(const PairShape& shape, const Topology& destinations, const Topology& sources) {
  const auto of = [&](PairPass pass, const Topology& topology) {
    return problem_of(PairKind::kGatv2, pass, shape, topology.num_rows, topology.num_edges);
  };
  return takes_edge_records(wanted_tensor_cores(), compute_major(), of(PairPass::kDestinations, destinations),
                            of(PairPass::kSources, sources));
}

}  // namespace halfgnn::cuda
