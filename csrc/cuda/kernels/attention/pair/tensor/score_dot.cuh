// Logits of dot attention on tensor cores: linear * <own key, key>. The interface: ../score.cuh.
#pragma once

#include "../pass.h"
#include "rows.cuh"

namespace halfgnn::cuda {

template <typename T, PairPass kPass, int kBlocks>
class DotTensorScore {
  using OwnRow = TensorOwnRow<T, kBlocks>;

 public:
  using Dots = typename OwnRow::Dots;

  __device__ DotTensorScore(const char*, int, const TensorLane&) {}
  __device__ void load(const char* own_row, int chunks, const TensorLane& lane) { own_.load(own_row, chunks, lane); }

  template <class Batch>
  __device__ void add_dots(const Batch& batch, const typename OwnRow::Rows& rows, int block, Dots& dots) const {
    own_.add_dots(batch, rows, block, dots);
  }
  __device__ static float logit(const PairArgs& args, const Dots& dots, int i) {
    return args.logit.linear * dots.of_edge(i);
  }
  template <class Batch, class Rows>
  __device__ static const Rows& terms(const Batch&, const Rows& rows, int) {
    return rows;
  }
  __device__ static void finish(const PairArgs& args, const char*, const char*, float, float (&sum)[kTensorChunk],
                                float (&)[kTensorChunk]) {
#pragma unroll
    for (int i = 0; i < kTensorChunk; ++i) sum[i] *= args.logit.linear;
  }

 private:
  OwnRow own_;
};

}  // namespace halfgnn::cuda
