// Before the backward pass of GAT over sources, for every destination v and head: delta[v] = <g[v], out[v]>, a record
// of what the edges of v need, and the gradient of attn_dst. Heads lie one after the other, so that rows do not matter.
#pragma once

#include "config.cuh"

namespace halfgnn::cuda {

struct GatPrepareArgs {
  int64_t num_heads;   // of all rows
  int32_t vectors;     // of a head
  int32_t log2_lanes;  // that share a head
  const void* grad;
  Precise out;
  const void* positive;
  const void* attn_dst;
  const float* lse;
  bool logit_is_float;
  float slope;
  void* grad_attn_dst;
  GatRecord* records;
};

template <typename T, int kVector>
__global__ void __launch_bounds__(kGatThreads) gat_prepare_backward_kernel(const GatPrepareArgs args) {
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kGatWarps + threadIdx.x / kWarpSize;
  const int64_t first = warp << (kLog2Warp - args.log2_lanes);
  if (first >= args.num_heads) return;  // whole warps
  const int own = lane & ((1 << args.log2_lanes) - 1);
  const int64_t wanted = first + (lane >> args.log2_lanes),
                head = wanted < args.num_heads ? wanted : args.num_heads - 1;
  const float logit = load_logit<T>(args.attn_dst, args.logit_is_float, static_cast<uint64_t>(head));
  const float lse = __ldg(args.lse + head);
  float delta = 0.f, product = 0.f;
  for (int vector = own; vector < args.vectors; vector += 1 << args.log2_lanes) {
    const int64_t at = (head * args.vectors + vector) * kVector;
    float out[kVector], positive[kVector];
    const auto grad = Fragment<T, kVector>::load(static_cast<const T*>(args.grad) + at);
    const auto row = Fragment<T, kVector>::load_streaming(static_cast<const T*>(args.positive) + at);
    load_precise<T>(args.out, at, out);
    row.widen(positive);
    delta = add_dot<T, kVector>(out, grad, delta);
    product = add_dot<T, kVector>(positive, grad, product);
  }
  for (int distance = 1; distance < 1 << args.log2_lanes; distance *= 2) {
    delta += __shfl_xor_sync(kFullMask, delta, distance);
    product += __shfl_xor_sync(kFullMask, product, distance);
  }
  if (own != 0 || wanted >= args.num_heads) return;
  *reinterpret_cast<float4*>(args.records + head) = make_float4(logit, lse, delta, 0.f);
  if (args.grad_attn_dst != nullptr) {
    store_result<T>(args.grad_attn_dst, args.logit_is_float, static_cast<uint64_t>(head), (1.f - args.slope) * product);
  }
}

template <typename T, int kVector>
cudaError_t launch_gat_prepare(const GatArgs& args, GatRecord* records, const Launch& launch) {
  GatPrepareArgs kernel{};
  kernel.num_heads = args.num_cols * args.heads;
  kernel.vectors = static_cast<int32_t>(args.dim / kVector);
  kernel.log2_lanes = log2_ceil(kernel.vectors < kWarpSize ? kernel.vectors : kWarpSize);
  kernel.grad = args.grad;
  kernel.out = args.out;
  kernel.positive = args.positive;
  kernel.attn_dst = args.attn_dst;
  kernel.lse = static_cast<const float*>(args.lse);
  kernel.logit_is_float = args.logit_type == DType::kFloat;
  kernel.slope = static_cast<float>(args.negative_slope);
  kernel.grad_attn_dst = args.grad_attn_dst;
  kernel.records = records;
  const int64_t blocks = ceil_div(kernel.num_heads << kernel.log2_lanes, kGatThreads);
  return cuda::launch(gat_prepare_backward_kernel<T, kVector>, blocks, kGatThreads, launch.stream, kernel);
}

template <typename T>
cudaError_t gat_prepare_backward_of(const GatArgs& args, int vector, GatRecord* records, const Launch& launch) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  if (vector == widest) return launch_gat_prepare<T, widest>(args, records, launch);
  if (vector == widest / 2) return launch_gat_prepare<T, widest / 2>(args, records, launch);
  if constexpr (widest == 8) {
    if (vector == 2) return launch_gat_prepare<T, 2>(args, records, launch);
  }
  return launch_gat_prepare<T, 1>(args, records, launch);
}

}  // namespace halfgnn::cuda
