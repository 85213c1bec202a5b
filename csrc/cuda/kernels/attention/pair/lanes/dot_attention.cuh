// Logits of dot attention: linear * <own key, key>. Include only where kernels are instantiated.
#pragma once

#include "../tensor/dot_tensor.h"
#include "kernel.cuh"

namespace halfgnn::cuda {

template <typename T, int kVector, int kRepeat>
class DotScore {
 public:
  using Row = Fragment<T, kVector>;
  static constexpr PairKind kKind = PairKind::kDot;
  static constexpr bool kNeedsFactorSum = false;

  // own_row: the row's own key.
  __device__ void load(const PairArgs&, const char* own_row, const HeadVectors<kRepeat>& vectors) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) own_[r] = Row::load(own_row + vectors.index[r] * Row::kBytes);
  }

  static constexpr int kWidth = kPairWidth<kVector>;
  struct Own {
    float key[kWidth];
  };
  struct OwnRow {
    Row key;
    __device__ Own widen(const PairArgs&, int j) const {
      Own own;
      widen_some(key, j, own.key);
      return own;
    }
  };
  __device__ OwnRow own(int r) const { return {as_new(own_[r])}; }

  // sum: over the elements of a key, what logit takes.
  __device__ static void add(const Own& own, const float (&key)[kWidth], float& sum) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum = fmaf(own.key[i], key[i], sum);
  }
  __device__ static float logit(const PairArgs& args, float sum) { return args.logit.linear * sum; }

  // Adds to the sum over edges that finish takes; factor: the gradient of the logit.
  __device__ void add_gradient(bool is_first, float factor, const Row& key, int, float (&sum)[kVector]) const {
    float values[kVector];
    key.widen(values);
    add_gradient(is_first, factor, values, sum);
  }
  __device__ static void add_gradient(bool is_first, float factor, const float (&key)[kVector], float (&sum)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] = is_first ? factor * key[i] : fmaf(factor, key[i], sum[i]);
  }
  // The gradient of an edge's key.
  __device__ void edge_gradient(const PairArgs& args, float factor, float (&gradient)[kVector]) const {
    own_[0].widen(gradient);
#pragma unroll
    for (int i = 0; i < kVector; ++i) gradient[i] *= args.logit.linear * factor;
  }
  // Turns the sum into the gradient of the own key.
  __device__ static void finish(const PairArgs& args, float, int, float (&sum)[kVector], float (&)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] *= args.logit.linear;
  }

 private:
  Row own_[kRepeat];
};

template <typename T>
cudaError_t dot_attention_of(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  if constexpr (sizeof(T) == 2) {
    if (takes_tensor_cores(PairKind::kDot, pass, args, shape)) return dot_tensor_of<T>(pass, args, shape, launch);
  }
  return pair_attention<DotScore, T>(pass, args, shape, launch);
}

}  // namespace halfgnn::cuda
