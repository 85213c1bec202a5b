// The kernel that makes the records of copy_reduce_backward.

#include "../core/ids.cuh"
#include "../core/scalar.cuh"
#include "copy_reduce_launch.h"

namespace halfgnn::cuda {
namespace {

constexpr int kThreads = 256;

struct KernelArgs {
  CopyReduceBackwardArgs args;
  bool has_squares;
  InverseDegrees degrees;
  float* records;
};

// A warp per node.
__global__ void __launch_bounds__(kThreads) reduce_records_kernel(const KernelArgs kernel) {
  const CopyReduceBackwardArgs& args = kernel.args;
  const int64_t node = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarpSize;
  if (node >= args.num_nodes) return;
  const float inverse = kernel.degrees.of(static_cast<uint32_t>(node));
  float* level = kernel.records + node * args.dim * (kernel.has_squares ? 2 : 1);
  for (int64_t i = threadIdx.x % kWarpSize; i < args.dim; i += kWarpSize) {
    const int64_t at = node * args.dim + i;
    const auto grad_of = [&](const void* grad) { return grad ? load_scalar(grad, args.grad_type, at) : 0.f; };
    float sum = fmaf(grad_of(args.mean), inverse, grad_of(args.sum));
    if (kernel.has_squares) {
      float slope = 2.f * inverse * grad_of(args.var);
      if (args.std) {
        const float std = __ldg(args.kept_std + at);
        if (std != 0.f) slope += inverse * grad_of(args.std) / std;
      }
      sum = fmaf(-slope, __ldg(args.kept_mean + at), sum);
      level[args.dim + i] = slope;
    }
    level[i] = sum;
  }
}

}  // namespace

cudaError_t reduce_records(const CopyReduceBackwardArgs& args, float* records, const Launch& launch) {
  if (!args.has_sums()) return cudaSuccess;
  const KernelArgs kernel{args, args.has_squares(), {{args.in_edges.indptr, args.topology.is_int64}}, records};
  const int64_t blocks = ceil_div(args.num_nodes, kThreads / kWarpSize);
  return cuda::launch(reduce_records_kernel, blocks, kThreads, launch.stream, kernel);
}

}  // namespace halfgnn::cuda
