#include "pair_attention.h"

#include <limits>

#include "../core/combine.h"
#include "../core/types.cuh"
#include "../plan/device.h"
#include "../plan/heads.h"

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

bool shape_of(int64_t heads, int64_t dim, DType type, uintptr_t bits, PairShape& shape) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max() / static_cast<int64_t>(sizeof(float));
  if (type == DType::kDouble || heads <= 0 || heads > most || dim <= 0 || dim > most / heads) return false;
  const auto widest = static_cast<int>(kMaxAccessBytes / size_of(type));
  shape = {heads, dim, type, widest, dim > int64_t{kWarpSize} * widest ? 4 : 1, false};
  // Whole vectors, as long as registers hold a head; else single elements, of heads of any width.
  const bool has_vectors = dim % widest == 0 && bits % kMaxAccessBytes == 0;
  if (!has_vectors || dim > shape.covered()) {
    shape.vector = 1;
    shape.repeat = 4;
  }
  shape.tiled = dim > shape.covered();
  return true;
}

PairArgs pair_args(const Topology& topology, const PairShape& shape, int64_t columns, int rows_an_edge) {
  const int64_t size = size_of(shape.type);
  const int log2_unroll = log2_ceil(pair_unroll(shape.lane_bytes(), rows_an_edge));
  const Gathered gathered{columns, shape.row_elements() * size * rows_an_edge, topology.num_edges};
  PairArgs args{};
  const HeadShape heads{shape.heads, shape.dim / shape.vector, shape.repeat, kLog2Warp - log2_unroll};
  args.layout = layout_of_whole_heads(current_device(), heads, gathered);
  args.units = row_units_of(topology, args.layout.slices);
  args.columns = indices_of(topology);
  args.edge_ids = edge_ids_of(topology);
  args.row_elements = static_cast<uint32_t>(shape.row_elements());
  args.blocks_a_slice = static_cast<uint32_t>(ceil_div(args.units.num_units, pair_warps(shape.lane_bytes())));
  return args;
}

cudaError_t combine_results(const PairArgs& args, const PairShape& shape, const Launch& launch) {
  AttentionCombineArgs combined{};
  combined.rows = args.units.rows;
  combined.partials = args.partials;
  combined.heads = shape.heads;
  combined.dim = shape.dim;
  combined.type = shape.type;
  combined.out = args.out;
  combined.lse = args.lse;
  return combine_attention(combined, launch);
}

cudaError_t combine_gradients(const PairArgs& args, const PairShape& shape, const Launch& launch) {
  const auto run = [&](const float* partial, void* gradient) {
    const CombineArgs combined{args.units.rows, partial, shape.row_elements(), 1.f, false, gradient, shape.type};
    return combine(combined, launch);
  };
  const cudaError_t status = run(args.partial_key, args.grad_key);
  return status == cudaSuccess && args.grad_value != nullptr ? run(args.partial_value, args.grad_value) : status;
}

}  // namespace halfgnn::cuda
