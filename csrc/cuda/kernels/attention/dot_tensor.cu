// The choice of dot_tensor.h.

#include "dot_tensor.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#include "../plan/tensor_cores.h"

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
    case PairPass::kDestinations: return kDotsToDestinations;
    default: return kDotsToSources;
  }
}

}  // namespace

bool takes_tensor_cores(PairPass pass, const PairArgs& args, const PairShape& shape) {
  const Rows& rows = args.units.rows;
  const bool is_aligned = shape.vector * size_of(shape.type) == kMaxAccessBytes;
  return takes_tensor_cores(
      wanted_tensor_cores(), compute_major(),
      {shape.heads, shape.dim, size_of(shape.type), is_aligned, of_dot(pass), rows.num_rows, rows.num_edges});
}

}  // namespace halfgnn::cuda
