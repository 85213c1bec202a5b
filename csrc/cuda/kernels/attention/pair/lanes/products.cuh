// Of GATv2's backward: products of a row's own key and the gradient of the sum of keys, added up over the rows of a
// warp. What all warps leave is the gradient of attn (../sum_products.cu). A lane adds up its elements in shared
// memory; then a block leaves one row of products. With tiles every warp adds up a row in the workspace, and leaves
// that.
#pragma once

#include <type_traits>

#include "frame.cuh"

namespace halfgnn::cuda {

// Of passes that have none.
template <class Config>
class NoProducts {
 public:
  struct Shared {};
  __device__ NoProducts(const PairFrame<Config>&, Shared&) {}
  // Of element `at` of the row, the r-th vector of the lane.
  __device__ void add(int /*r*/, uint32_t /*at*/, const float (& /*product*/)[Config::kVector]) {}
  // Once all rows are done. The whole block takes part.
  __device__ void write() const {}
};

template <class Config>
class BlockProducts {
  static constexpr int kVector = Config::kVector;

 public:
  using Shared = float[Config::kElements][Config::kThreads];

  __device__ BlockProducts(const PairFrame<Config>& frame, Shared& shared) : frame_(frame), shared_(shared) {
#pragma unroll
    for (int i = 0; i < Config::kElements; ++i) shared_[i][threadIdx.x] = 0.f;
  }
  __device__ void add(int r, uint32_t, const float (&product)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) shared_[r * kVector + i][threadIdx.x] += product[i];
  }
  // What the lane's edges of a batch add, of any group.
  __device__ void add_edges(const float (&product)[kVector]) { add(0, 0, product); }

  // Adds up the products of the block's warps.
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

  const PairFrame<Config> frame_;
  Shared& shared_;
};

template <class Config>
class TiledProducts {
 public:
  struct Shared {};
  __device__ TiledProducts(const PairFrame<Config>& frame, Shared&) : frame_(frame) {
    for (int tile = 0; tile < frame_.args.layout.tiles; ++tile) {
      frame_.for_each_element(tile, [&](int, int, uint32_t at) { of_warp()[at] = 0.f; });
    }
  }
  __device__ void add(int, uint32_t at, const float (&product)[Config::kVector]) {
#pragma unroll
    for (int i = 0; i < Config::kVector; ++i) of_warp()[at + i] += product[i];
  }
  __device__ void write() const {}

 private:
  __device__ float* of_warp() const {
    const PairArgs& args = frame_.args;
    return args.products + static_cast<int64_t>(frame_.first_unit(args)) * args.row_elements;
  }

  const PairFrame<Config> frame_;
};

template <class Config>
using PairProducts =
    std::conditional_t<!Config::kWritesProducts, NoProducts<Config>,
                       std::conditional_t<Config::kTiled, TiledProducts<Config>, BlockProducts<Config>>>;

}  // namespace halfgnn::cuda
