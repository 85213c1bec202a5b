// The kernel that marks which edges won something, for copy_reduce_backward.

#include "copy_reduce_launch.h"

namespace halfgnn::cuda {
namespace {

constexpr int kThreads = 256;

struct KernelArgs {
  const int32_t* winners;
  int64_t count;
  int32_t dim;
  uint32_t num_edges;
  WinnerMarks marks;
};

// A thread per winner. Bits are set in any order, to the same end.
__global__ void __launch_bounds__(kThreads) mark_winners_kernel(const KernelArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.count) return;
  const auto edge = static_cast<uint32_t>(__ldcs(args.winners + i));
  if (edge >= args.num_edges) return;  // -1: a node without edges
  const uint32_t bit = args.marks.bit(i % args.dim) << (edge % sizeof(uint32_t) * WinnerMarks::kBits);
  atomicOr(reinterpret_cast<uint32_t*>(args.marks.of_edge) + edge / sizeof(uint32_t), bit);
}

}  // namespace

cudaError_t mark_winners(const CopyReduceBackwardArgs& args, const WinnerMarks& marks, const Launch& launch) {
  const int64_t num_edges = args.topology.num_edges, count = args.num_nodes * args.dim;
  const int64_t bytes = ceil_div(num_edges, int64_t{sizeof(uint32_t)}) * static_cast<int64_t>(sizeof(uint32_t));
  if (const cudaError_t status = cudaMemsetAsync(marks.of_edge, 0, static_cast<size_t>(bytes), launch.stream);
      status != cudaSuccess) {
    return status;
  }
  for (const int32_t* winners : {args.max ? args.arg_max : nullptr, args.min ? args.arg_min : nullptr}) {
    if (winners == nullptr) continue;
    const KernelArgs kernel{winners, count, static_cast<int32_t>(args.dim), static_cast<uint32_t>(num_edges), marks};
    const cudaError_t status =
        cuda::launch(mark_winners_kernel, ceil_div(count, kThreads), kThreads, launch.stream, kernel);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace halfgnn::cuda
