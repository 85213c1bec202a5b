// Of GATv2's backward on tensor cores: what ../lanes/products.cuh says of the other kernels. A lane adds up the chunk
// of its head that it is responsible for, in shared memory; then a block leaves one row of products.
#pragma once

#include "rows.cuh"

namespace halfgnn::cuda {

// Of passes that have none.
class NoTensorProducts {
 public:
  struct Shared {};
  explicit __device__ NoTensorProducts(Shared&) {}
  __device__ void add(const float (& /*product*/)[kTensorChunk]) {}
  // Adds up the products of the block's warps. target: of the head. The whole block takes part, once all rows are done.
  __device__ void write(float* /*target*/, int /*chunks*/) const {}
};

template <int kBlocks>
class TensorProducts {
 public:
  using Shared = float[kTensorChunk][kTensorThreads];

  explicit __device__ TensorProducts(Shared& shared) : shared_(shared) {
#pragma unroll
    for (int i = 0; i < kTensorChunk; ++i) shared_[i][threadIdx.x] = 0.f;
  }
  __device__ void add(const float (&product)[kTensorChunk]) {
#pragma unroll
    for (int i = 0; i < kTensorChunk; ++i) shared_[i][threadIdx.x] += product[i];
  }
  __device__ void write(float* target, int chunks) const {
    __syncthreads();
    for (int element = static_cast<int>(threadIdx.x); element < chunks * kTensorChunk; element += kTensorThreads) {
      const int chunk = element / kTensorChunk;
      const int block = chunk / 8, lane = 4 * (chunk % 8 ^ 4 * block) + block;  // TensorSums::own_chunk
      float sum = 0.f;
#pragma unroll
      for (int warp = 0; warp < kTensorWarps; ++warp) sum += shared_[element % kTensorChunk][warp * kWarpSize + lane];
      target[element] = sum;
    }
  }

 private:
  Shared& shared_;
};

}  // namespace halfgnn::cuda
