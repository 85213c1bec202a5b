// Of GATv2's backward: products of a row's own key and the gradient of the sum of keys, added up over the rows of a
// warp. What all warps leave is the gradient of attn (pair/sum_products.cu). A lane adds up its elements in shared
// memory; then a block leaves one row of products. With tiles every warp adds up a row in the workspace, and leaves
// that.
#pragma once

#include "frame.cuh"

namespace halfgnn::cuda {

template <class Config>
class PairProducts {
  static constexpr int kVector = Config::kVector;

 public:
  using Shared = float[Config::kWritesProducts && !Config::kTiled ? Config::kElements : 1][Config::kThreads];

  __device__ PairProducts(const PairFrame<Config>& frame, Shared& shared) : frame_(frame), shared_(shared) {
    if constexpr (Config::kWritesProducts) clear();
  }

  // Of element `at` of the row, the r-th vector of the lane.
  __device__ void add(int r, uint32_t at, const float (&product)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if constexpr (Config::kTiled) {
        of_warp()[at + i] += product[i];
      } else {
        shared_[r * kVector + i][threadIdx.x] += product[i];
      }
    }
  }

  // What the lane's edges of a batch add, of any group.
  __device__ void add_edges(const float (&product)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) shared_[i][threadIdx.x] += product[i];
  }

  // Adds up the products of the block's warps. The whole block takes part, once all rows are done.
  __device__ void write() const {
    __syncthreads();
    const PairArgs& args = frame_.args;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    frame_.for_each_element(0, [&](int r, int i, uint32_t at) {
      const int element = r * kVector + i;
      if (element % Config::kWarps != warp) return;
      float sum = 0.f;
#pragma unroll
      for (int w = 0; w < Config::kWarps; ++w) sum += of_lane(element, w * kWarpSize + frame_.lane());
      args.products[static_cast<int64_t>(frame_.block(args)) * args.row_elements + at] = sum;
    });
  }

 private:
  // Of a lane of the first group, and of those that have the same elements.
  __device__ float of_lane(int element, int thread) const {
    float sum = shared_[element][thread];
    if constexpr (Config::kHasEdgeProducts) {
      const int lanes = kWarpSize >> frame_.log2_groups();
      for (int other = lanes; other < kWarpSize; other += lanes) sum += shared_[element][thread + other];
    }
    return sum;
  }
  __device__ float* of_warp() const {
    const PairArgs& args = frame_.args;
    return args.products + static_cast<int64_t>(frame_.first_unit(args)) * args.row_elements;
  }
  __device__ void clear() {
    if constexpr (Config::kTiled) {
      for (int tile = 0; tile < frame_.args.layout.tiles; ++tile) {
        frame_.for_each_element(tile, [&](int, int, uint32_t at) { of_warp()[at] = 0.f; });
      }
    } else {
#pragma unroll
      for (int i = 0; i < Config::kElements; ++i) shared_[i][threadIdx.x] = 0.f;
    }
  }

  const PairFrame<Config> frame_;
  Shared& shared_;
};

}  // namespace halfgnn::cuda
