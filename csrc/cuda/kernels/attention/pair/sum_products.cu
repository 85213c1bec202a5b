// After the backward passes of GATv2: the gradient of attn, which is the sum of all rows of products.

#include "../../core/scalar.cuh"
#include "pass.h"

namespace halfgnn::cuda {
namespace {

constexpr int kSumWarps = 32;
constexpr int kSumThreads = kSumWarps * kWarpSize;

// A block has 32 columns. Its warps take rows by turns, and a lane has several of them in flight.
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

cudaError_t sum_products(const ProductSumArgs& args, const Launch& launch) {
  return cuda::launch(sum_products_kernel, ceil_div(args.len, kWarpSize), kSumThreads, launch.stream, args);
}

}  // namespace halfgnn::cuda
