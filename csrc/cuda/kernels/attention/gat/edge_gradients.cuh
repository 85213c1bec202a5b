// Gradients of edge logits of GAT with heads wider than a warp: a kernel of its own, which gathers once more. A warp
// takes 32 positions, and works on one edge and head at a time.
#pragma once

#include "../../core/softmax.cuh"
#include "config.cuh"

namespace halfgnn::cuda {

struct GatEdgeArgs {
  GatGather gather;  // of rows of the gradient; rows are sources
  int32_t dim;
  const void* feat;
  const GatRecord* records;
  void* grad_edge_logits;
};

// The row that a position belongs to: the last that starts at or before it.
inline __device__ uint32_t row_of_edge(const Rows& rows, int64_t position) {
  uint32_t row = 0;
  for (auto end = static_cast<uint32_t>(rows.num_rows); end - row > 1;) {
    const uint32_t middle = row + (end - row) / 2;
    const bool passes = rows.indptr.offset(middle) <= position;
    row = passes ? middle : row;
    end = passes ? end : middle;
  }
  return row;
}

// <x, y> over the elements of a head, in all lanes.
template <typename T, int kVector>
__device__ float dot_of_head(const T* x, const T* y, int dim, int lane) {
  float dot = 0.f;
#pragma unroll 4
  for (int at = lane * kVector; at < dim; at += kWarpSize * kVector) {
    float values[kVector];
    Fragment<T, kVector>::load(x + at).widen(values);
    dot = add_dot<T, kVector>(values, Fragment<T, kVector>::load(y + at), dot);
  }
  for (int distance = 1; distance < kWarpSize; distance *= 2) dot += __shfl_xor_sync(kFullMask, dot, distance);
  return dot;
}

// The gradient of the logit of an edge and head; at_row and at_column: that head of its ends, at_edge: of itself.
template <typename T>
__device__ float gat_edge_gradient(const GatEdgeArgs& args, uint64_t at_row, uint64_t at_column, uint64_t at_edge,
                                   float multiplier, float dot) {
  const GatGather& gather = args.gather;
  const GatRecord record = load_record(args.records + at_column);
  float sum = record.logit + load_logit<T>(gather.row_logits, gather.logit_is_float, at_row);
  sum += load_logit<T>(gather.edge_logits, gather.logit_is_float, at_edge);
  const float weight = exp_of_difference<T>(leaky_relu(sum, gather.slope) - record.lse);
  return weight * (multiplier * dot - record.delta) * (sum > 0.f ? 1.f : gather.slope);
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kGatThreads, 14) gat_edge_gradient_kernel(const GatEdgeArgs args) {
  const GatGather& gather = args.gather;
  const Rows& rows = gather.units.rows;
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  const int64_t base =
      (static_cast<int64_t>(blockIdx.x) * kGatWarps + threadIdx.x / kWarpSize) * static_cast<int64_t>(kWarpSize);
  if (base >= rows.num_edges) return;  // whole warps
  const int64_t last = rows.num_edges - 1, position = base + lane < last ? base + lane : last;
  const uint32_t own_column = gather.columns.id(position), own_edge = gather.edge_ids.id(position);
  const uint32_t own_row = row_of_edge(rows, position);
  const int count = static_cast<int>(last + 1 - base < kWarpSize ? last + 1 - base : kWarpSize);
  for (int i = 0; i < count; ++i) {
    const uint32_t row = __shfl_sync(kFullMask, own_row, i), column = __shfl_sync(kFullMask, own_column, i);
    const uint32_t edge = __shfl_sync(kFullMask, own_edge, i);
    for (int head = 0; head < gather.layout.heads; ++head) {
      const auto heads = static_cast<uint32_t>(gather.layout.heads);
      const uint64_t at_row = static_cast<uint64_t>(row) * heads + head;
      const uint64_t at_column = static_cast<uint64_t>(column) * heads + head;
      const uint64_t at_edge = static_cast<uint64_t>(edge) * heads + head;
      const T* x = static_cast<const T*>(args.feat) + at_row * args.dim;
      const T* y = static_cast<const T*>(gather.source) + at_column * args.dim;
      const float dot = dot_of_head<T, kVector>(x, y, args.dim, lane);
      const float multiplier = gather.dropout.factor(edge, static_cast<uint32_t>(head));
      const float gradient = gat_edge_gradient<T>(args, at_row, at_column, at_edge, multiplier, dot);
      if (lane == 0) store_result<T>(args.grad_edge_logits, gather.logit_is_float, at_edge, gradient);
    }
  }
}

template <typename T, int kVector>
cudaError_t launch_gat_edge_gradient(const GatEdgeArgs& kernel, const Launch& launch) {
  const int64_t blocks = ceil_div(kernel.gather.units.rows.num_edges, kGatThreads);
  return cuda::launch(gat_edge_gradient_kernel<T, kVector>, blocks, kGatThreads, launch.stream, kernel);
}

template <typename T>
cudaError_t gat_edge_gradient_of(const GatArgs& args, const GatPlan& plan, const GatRecord* records,
                                 const Launch& launch) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  GatEdgeArgs kernel{};
  kernel.gather = gat_gather(args, plan, args.grad, args.attn_src, {});
  kernel.dim = static_cast<int32_t>(args.dim);
  kernel.feat = args.feat;
  kernel.records = records;
  kernel.grad_edge_logits = args.grad_edge_logits;
  return plan.vector == widest ? launch_gat_edge_gradient<T, widest>(kernel, launch)
                               : launch_gat_edge_gradient<T, 1>(kernel, launch);
}

}  // namespace halfgnn::cuda
