// Logits of dot attention: linear * <own key, key>. The interface: ../score.cuh.
#pragma once

#include "rows.cuh"

namespace halfgnn::cuda {

template <typename T, int kVector, int kRepeat>
class DotLaneScore {
 public:
  using Row = Fragment<T, kVector>;

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
  static __device__ float first() { return 0.f; }
  __device__ OwnRow own(int r) const { return {as_new(own_[r])}; }

  __device__ static void add(const Own& own, const float (&key)[kWidth], float& sum) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum = fmaf(own.key[i], key[i], sum);
  }
  __device__ static float logit(const PairArgs& args, float sum) { return args.logit.linear * sum; }

  template <class Rows>
  __device__ static void add_gradient(bool is_first, float factor, const Rows& rows, int u, int r,
                                      float (&sum)[kVector]) {
    float key[kVector];
    rows.widen_key(u, r, key);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] = is_first ? factor * key[i] : fmaf(factor, key[i], sum[i]);
  }
  template <class Rows>
  __device__ void edge_gradient(const PairArgs& args, float factor, const Rows&, int, float (&gradient)[kVector],
                                float (&)[kVector]) const {
    own_[0].widen(gradient);
#pragma unroll
    for (int i = 0; i < kVector; ++i) gradient[i] *= args.logit.linear * factor;
  }
  __device__ static void finish(const PairArgs& args, float, int, float (&sum)[kVector], float (&)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] *= args.logit.linear;
  }

 private:
  Row own_[kRepeat];
};

}  // namespace halfgnn::cuda
