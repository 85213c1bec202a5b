#include "gatv2_attention.h"

#include <algorithm>

#include "../core/scalar.cuh"
#include "../core/types.cuh"
#include "pair_attention.h"

namespace halfgnn::cuda {
namespace {

bool shape_of(const Gatv2Args& args, PairShape& shape) {
  const uintptr_t bits = bits_of(args.feat_src) | bits_of(args.feat_dst) | bits_of(args.attn) | bits_of(args.out) |
                         bits_of(args.grad) | bits_of(args.grad_feat_src) | bits_of(args.grad_feat_dst);
  return shape_of(args.heads, args.dim, args.type, bits, shape);
}

PairArgs pass_of(const Gatv2Args& args, const Topology& topology, const PairShape& shape, int64_t columns,
                 int rows_an_edge) {
  PairArgs pass = pair_args(topology, shape, columns, rows_an_edge);
  pass.attn = args.attn;
  pass.slope = static_cast<float>(args.negative_slope);
  pass.linear = static_cast<float>(.5 + .5 * args.negative_slope);
  pass.absolute = static_cast<float>(.5 - .5 * args.negative_slope);
  pass.dropout = mask_of(args.dropout);
  return pass;
}

// The passes of a call, with their places in the workspace.
struct Forward {
  PairArgs pass;

  Forward(const Gatv2Args& args, const PairShape& shape, PairWorkspace& workspace)
      : pass(pass_of(args, args.topology, shape, args.num_src, 1)) {
    const int64_t slots = pass.units.rows.num_slots;
    pass.partials = {workspace.take<PieceSums>(slots * args.heads), workspace.take<float>(slots * shape.row_elements()),
                     1};
    pass.dots = workspace.take<float>(num_dots(args.topology, shape, 1));
    pass.own_key = args.feat_dst;
    pass.key = pass.value = args.feat_src;
    pass.out = args.out;
    pass.lse = static_cast<float*>(args.lse);
  }
};

// Rows of products are summed up by blocks, which then take rows by turns: few enough for a small workspace, enough for
// an even load.
constexpr int64_t kMaxProducts = 1 << 20;
constexpr int64_t kMaxProductBlocks = 1 << 12, kMinProductBlocks = 1 << 10;
int64_t product_rows(const PairShape& shape, PairArgs& pass) {
  const int64_t rows_a_block = shape.tiled ? pair_warps(shape.lane_bytes()) : 1, slices = pass.layout.slices;
  const int64_t most = std::min(kMaxProducts / (shape.row_elements() * rows_a_block), kMaxProductBlocks / slices);
  const int64_t blocks = std::max(most, ceil_div(kMinProductBlocks, slices));
  pass.blocks_a_slice = static_cast<uint32_t>(std::min<int64_t>(pass.blocks_a_slice, blocks));
  return pass.blocks_a_slice * rows_a_block;
}

struct Backward {
  DestinationRecord* records;
  PairArgs destinations, sources;
  int64_t num_products;  // rows

  Backward(const Gatv2Args& args, const PairShape& shape, PairWorkspace& workspace)
      : records(workspace.take<DestinationRecord>(args.topology.num_rows * args.heads)),
        destinations(pass_of(args, args.topology, shape, args.by_src.num_rows, 1)),
        sources(pass_of(args, args.by_src, shape, args.topology.num_rows, 2)) {
    const int64_t of_destinations = product_rows(shape, destinations);
    num_products = of_destinations + product_rows(shape, sources);
    destinations.products = workspace.take<float>(num_products * shape.row_elements());
    if (destinations.products != nullptr) {
      sources.products = destinations.products + of_destinations * shape.row_elements();
    }
    float* dots = workspace.take<float>(num_dots(args.topology, shape, 2));
    for (PairArgs* pass : {&destinations, &sources}) {
      pass->partial_key = workspace.take<float>(pass->units.rows.num_slots * shape.row_elements());
      pass->dots = dots;
      pass->records = records;
    }
    destinations.own_key = sources.key = args.feat_dst;
    destinations.own_value = sources.value = args.grad;
    destinations.key = destinations.value = sources.own_key = sources.own_value = args.feat_src;
    destinations.grad_key = args.grad_feat_dst;
    sources.grad_key = args.grad_feat_src;
  }
};

cudaError_t run(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  return with_type(shape.type,
                   [&](auto t) { return gatv2_attention_of<TypeOf<decltype(t)>>(pass, args, shape, launch); });
}

// ---- The gradient of attn: the sum of all rows of products.

constexpr int kSumWarps = 32;
constexpr int kSumThreads = kSumWarps * kWarpSize;

struct ProductSumArgs {
  const float* products;
  int64_t rows, len;
  void* sums;
  DType type;
};

// A block has 32 columns, its warps take rows by turns, a lane several of them at a time.
__global__ void __launch_bounds__(kSumThreads) sum_products_kernel(const ProductSumArgs args) {
  constexpr int kUnroll = 16;
  __shared__ double sums[kSumWarps][kWarpSize];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarpSize + lane;
  const int64_t read = column < args.len ? column : args.len - 1;
  double sum = 0;
  for (int64_t first = warp; first < args.rows; first += kUnroll * kSumWarps) {
    float value[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = first + u * kSumWarps;
      value[u] = __ldcs(args.products + (row < args.rows ? row : first) * args.len + read);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kSumWarps < args.rows) sum += static_cast<double>(value[u]);
    }
  }
  sums[warp][lane] = sum;
  for (int half = kSumWarps / 2; half > 0; half /= 2) {
    __syncthreads();
    if (warp < half) sums[warp][lane] += sums[warp + half][lane];
  }
  if (warp == 0 && column < args.len) store_scalar(args.sums, args.type, column, static_cast<float>(sums[0][lane]));
}

}  // namespace

size_t gatv2_attention_workspace(const Gatv2Args& args) {
  PairShape shape;
  PairWorkspace workspace(nullptr);
  if (shape_of(args, shape)) Forward(args, shape, workspace);
  return workspace.bytes();
}

cudaError_t gatv2_attention(const Gatv2Args& args, const Launch& launch) {
  PairShape shape;
  if (!shape_of(args, shape)) return cudaErrorInvalidValue;
  PairWorkspace workspace(launch.workspace);
  const Forward forward(args, shape, workspace);
  const cudaError_t status = run(PairPass::kForward, forward.pass, shape, launch);
  return status == cudaSuccess ? combine_results(forward.pass, shape, launch) : status;
}

size_t gatv2_attention_backward_workspace(const Gatv2Args& args) {
  PairShape shape;
  PairWorkspace workspace(nullptr);
  if (shape_of(args, shape)) Backward(args, shape, workspace);
  return workspace.bytes();
}

cudaError_t gatv2_attention_backward(const Gatv2Args& args, const Launch& launch) {
  PairShape shape;
  if (!shape_of(args, shape)) return cudaErrorInvalidValue;
  PairWorkspace workspace(launch.workspace);
  const Backward backward(args, shape, workspace);
  const auto* lse = static_cast<const float*>(args.lse);
  cudaError_t status = find_deltas({args.topology.num_rows, args.grad, args.out, lse, backward.records}, shape, launch);
  if (status == cudaSuccess) status = run(PairPass::kDestinations, backward.destinations, shape, launch);
  if (status == cudaSuccess) status = combine_gradients(backward.destinations, shape, launch);
  if (status == cudaSuccess) status = run(PairPass::kSources, backward.sources, shape, launch);
  if (status == cudaSuccess) status = combine_gradients(backward.sources, shape, launch);
  if (status != cudaSuccess) return status;
  const ProductSumArgs sum{backward.destinations.products, backward.num_products, shape.row_elements(), args.grad_attn,
                           args.type};
  return cuda::launch(sum_products_kernel, ceil_div(sum.len, kWarpSize), kSumThreads, launch.stream, sum);
}

}  // namespace halfgnn::cuda
