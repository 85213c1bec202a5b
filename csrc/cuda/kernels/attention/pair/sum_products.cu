// After the backward passes of GATv2: the gradient of attn, which is the sum of all rows of products.

#include <algorithm>

#include "../../core/scalar.cuh"
#include "pass.h"

namespace halfgnn::cuda {
namespace {

constexpr int kSumWarps = 32;
constexpr int kSumThreads = kSumWarps * kWarpSize;
constexpr int kUnroll = 8;  // rows that a lane has in flight

// rows: of a share, of which there are `shares`. Value: of products, or of what shares of them came to.
template <typename Value>
struct KernelArgs {
  const Value* products;
  int64_t all_rows, rows, len;
  double* partial;  // null: the result is in `sums`
  void* sums;
  DType type;
};

// A block has 32 columns of a share. Its warps take rows by turns.
template <typename Value>
__global__ void __launch_bounds__(kSumThreads) sum_products_kernel(const KernelArgs<Value> args) {
  __shared__ double sums[kSumWarps][kWarpSize];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t tiles = ceil_div(args.len, kWarpSize), share = blockIdx.x / tiles;
  const int64_t column = blockIdx.x % tiles * kWarpSize + lane;
  const int64_t read = column < args.len ? column : args.len - 1;
  const int64_t begin = share * args.rows,
                behind = begin + args.rows < args.all_rows ? begin + args.rows : args.all_rows;
  double sum = 0;
  for (int64_t first = begin + warp; first < behind; first += kUnroll * kSumWarps) {
    Value value[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = first + u * kSumWarps;
      value[u] = __ldcs(args.products + (row < behind ? row : first) * args.len + read);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kSumWarps < behind) sum += static_cast<double>(value[u]);
    }
  }
  sums[warp][lane] = sum;
  for (int half = kSumWarps / 2; half > 0; half /= 2) {
    __syncthreads();
    if (warp < half) sums[warp][lane] += sums[warp + half][lane];
  }
  if (warp != 0 || column >= args.len) return;
  if (args.partial != nullptr) {
    args.partial[share * args.len + column] = sums[0][lane];
  } else {
    store_scalar(args.sums, args.type, column, static_cast<float>(sums[0][lane]));
  }
}

}  // namespace

cudaError_t sum_products(const ProductSumArgs& args, const Launch& launch) {
  const int64_t tiles = ceil_div(args.len, kWarpSize);
  const int64_t shares = std::clamp(args.rows / (kUnroll * kSumWarps), int64_t{1}, kProductShares);
  if (shares == 1 || args.partial == nullptr) {
    return cuda::launch(sum_products_kernel<float>, tiles, kSumThreads, launch.stream,
                        {args.products, args.rows, args.rows, args.len, nullptr, args.sums, args.type});
  }
  const cudaError_t status =
      cuda::launch(sum_products_kernel<float>, tiles * shares, kSumThreads, launch.stream,
                   {args.products, args.rows, ceil_div(args.rows, shares), args.len, args.partial, nullptr, args.type});
  if (status != cudaSuccess) return status;
  return cuda::launch(sum_products_kernel<double>, tiles, kSumThreads, launch.stream,
                      {args.partial, shares, shares, args.len, nullptr, args.sums, args.type});
}

}  // namespace halfgnn::cuda
