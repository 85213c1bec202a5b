// Before the backward passes of GATv2 and dot attention: lse and <gradient, result> of every destination and head.

#include "../core/types.cuh"
#include "pair_pass.h"

namespace halfgnn::cuda {
namespace {

constexpr int kDeltaThreads = 256;

struct DeltaKernelArgs {
  DeltaArgs args;
  int64_t num_heads;   // of all rows
  int32_t vectors;     // of a head
  int32_t log2_lanes;  // that share a head
};

// Heads lie one after the other, so that rows do not matter.
template <typename T, int kVector>
__global__ void __launch_bounds__(kDeltaThreads) deltas_kernel(const DeltaKernelArgs kernel) {
  using Row = Fragment<T, kVector>;
  const DeltaArgs& args = kernel.args;
  const int lanes = 1 << kernel.log2_lanes, own = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int64_t wanted = (static_cast<int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x) >> kernel.log2_lanes;
  const int64_t head = wanted < kernel.num_heads ? wanted : kernel.num_heads - 1;
  float delta = 0.f;
  for (int vector = own; vector < kernel.vectors; vector += lanes) {
    const int64_t at = (head * kernel.vectors + vector) * kVector;
    const Row row = Row::load_streaming(static_cast<const T*>(args.grad) + at);
    float grad[kVector], out[kVector];
    load_precise<T>(args.out, at, out);
    row.widen(grad);
#pragma unroll
    for (int i = 0; i < kVector; ++i) delta = fmaf(grad[i], out[i], delta);
  }
  for (int distance = 1; distance < lanes; distance *= 2) delta += __shfl_xor_sync(kFullMask, delta, distance);
  if (own == 0 && wanted < kernel.num_heads) args.records[head] = {__ldg(args.lse + head), delta};
}

template <typename T, int kVector>
cudaError_t launch_deltas_with(const DeltaKernelArgs& kernel, const Launch& launch) {
  const int64_t blocks = ceil_div(kernel.num_heads << kernel.log2_lanes, kDeltaThreads);
  return cuda::launch(deltas_kernel<T, kVector>, blocks, kDeltaThreads, launch.stream, kernel);
}
template <typename T>
cudaError_t launch_deltas(const DeltaKernelArgs& kernel, const PairShape& shape, const Launch& launch) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  return shape.vector == widest ? launch_deltas_with<T, widest>(kernel, launch)
                                : launch_deltas_with<T, 1>(kernel, launch);
}

}  // namespace

cudaError_t find_deltas(const DeltaArgs& args, const PairShape& shape, const Launch& launch) {
  const int64_t vectors = shape.dim / shape.vector;
  const int log2_lanes = log2_ceil(vectors < kWarpSize ? vectors : kWarpSize);
  const DeltaKernelArgs kernel{args, args.rows * shape.heads, static_cast<int32_t>(vectors), log2_lanes};
  return with_type(shape.type, [&](auto t) { return launch_deltas<TypeOf<decltype(t)>>(kernel, shape, launch); });
}

}  // namespace halfgnn::cuda
