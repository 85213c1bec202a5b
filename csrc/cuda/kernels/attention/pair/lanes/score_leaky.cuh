// Logits of GATv2: sum of attn * LeakyReLU(z), z = own key + key. The interface: ../score.cuh.
//
// LeakyReLU(z) = linear * z + absolute * |z| with linear = (1 + slope) / 2 and absolute = (1 - slope) / 2: both sums
// take one multiply-add per element. Its derivative takes two values, so that a sum over edges of factor *
// LeakyReLU'(z) is slope * sum of factors + (1 - slope) * sum of the factors of edges with a positive z.
//
// Where logits are split, the linear half leaves the loop: linear * <attn, own key> + linear * <attn, key> is one
// number of the row and one of the column (PairArgs::key_logits), both summed in fp32. What is left of an edge is
// absolute * sum of attn * |z|, of which `absolute` multiplies the whole sum, once.
#pragma once

#include "../../../core/heads.cuh"
#include "rows.cuh"

namespace halfgnn::cuda {

// x + y > 0, exactly.
inline __device__ bool is_sum_positive(float x, float y) { return x > -y; }
inline __device__ bool is_sum_positive(__half x, __half y) { return __hgt(x, __hneg(y)); }
inline __device__ bool is_sum_positive(__nv_bfloat16 x, __nv_bfloat16 y) { return __hgt(x, __hneg(y)); }

// The same of pairs, as masks: bits of both halves of a word. The sign of a rounded sum is that of the exact one, and
// it is 0 only if that is: before sm_90, which compares no bfloat16, the sum is made. It takes nan for positive: their
// gradients are nan either way.
inline __device__ uint32_t positive_mask(__half2 x, __half2 y) { return __hgt2_mask(x, __hneg2(y)); }
inline __device__ uint32_t positive_mask(__nv_bfloat162 x, __nv_bfloat162 y) {
  if (HALFGNN_ARCH >= 900) return __hgt2_mask(x, __hneg2(y));
  const auto z = bits_as<uint32_t>(__hadd2(x, y));
  constexpr uint32_t kMagnitude = 0x7fff7fffu;
  const uint32_t positive = ((z & kMagnitude) + kMagnitude) & ~z & ~kMagnitude;  // not 0, and without a sign
  return positive | (positive - (positive >> 15));
}

// Which bit of its signs belongs to element i of a vector: those at even places come first, so that the masks of pairs
// are joined as they are.
template <int kVector>
constexpr HALFGNN_HOST_DEVICE int sign_bit(int i) {
  return kVector < 2 ? 0 : i / 2 + i % 2 * (kVector / 2);
}

// sum += x if the bit is set. Of bit 0 the compiler makes a comparison beside the mask.
inline __device__ void add_if(uint32_t bits, int bit, float x, float& sum) {
#ifdef __CUDA_ARCH__
  if (bit == 0) {
    asm("{.reg .pred p; .reg .b32 b; and.b32 b, %1, 1; setp.ne.u32 p, b, 0; @p add.f32 %0, %0, %2;}"
        : "+f"(sum)
        : "r"(bits), "f"(x));
    return;
  }
#endif
  if ((bits >> bit & 1) != 0) sum += x;
}

// Signs of a vector: the bits of the elements with x + y > 0. What other bits are does not matter.
template <typename T, int kVector>
__device__ uint32_t signs_of_sum(const Fragment<T, kVector>& x, const Fragment<T, kVector>& y) {
  static_assert(kVector > 1, "pairs");
  using Pairs = typename Fragment<T, kVector>::Pairs;
  const auto left = bits_as<Pairs>(x.word), right = bits_as<Pairs>(y.word);
  uint32_t signs = 0;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    if constexpr (sizeof(T) == 2) {
      signs |= positive_mask(left.value[i], right.value[i]) & (0x10001u << i);
    } else {
      signs |= is_sum_positive(left.value[i].x, right.value[i].x) ? 1u << sign_bit<kVector>(2 * i) : 0u;
      signs |= is_sum_positive(left.value[i].y, right.value[i].y) ? 1u << sign_bit<kVector>(2 * i + 1) : 0u;
    }
  }
  if (sizeof(T) == 2) signs = signs | signs >> (16 - kVector / 2);
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(signs));  // one register, not the comparisons that it was made of
#endif
  return signs;
}

template <typename T, int kVector, int kRepeat, bool kSplits>
class LeakyLaneScore {
 public:
  using Row = Fragment<T, kVector>;

  __device__ void load(const PairArgs& args, const char* own_row, const HeadVectors<kRepeat>& vectors) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      own_[r] = Row::load(own_row + vectors.index[r] * Row::kBytes);
      attn_[r] = Row::load(static_cast<const char*>(args.logit.attn) + vectors.index[r] * Row::kBytes);
      if constexpr (kSplits) attn_[r].keep_if(r < vectors.count);
    }
    if constexpr (kSplits) {
      first_ = 0.f;
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        float own[kVector];
        own_[r].widen(own);
        first_ = add_dot(own, attn_[r], first_);
      }
      first_ *= args.logit.ratio;
    }
  }
  // The lane's part of linear * <attn, own key>, before `absolute` multiplies it.
  __device__ float first() const { return kSplits ? first_ : 0.f; }

  static constexpr int kWidth = kPairWidth<kVector>;
  struct Own {
    float key[kWidth];
    float linear[kWidth];
    float absolute[kWidth];
  };
  struct OwnRow {
    Row key;
    Row attn;
    __device__ Own widen(const PairArgs& args, int j) const {
      Own own;
      float weight[kWidth];
      widen_some(key, j, own.key);
      widen_some(attn, j, weight);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        own.linear[i] = args.logit.linear * weight[i];
        own.absolute[i] = kSplits ? weight[i] : args.logit.absolute * weight[i];
      }
      return own;
    }
  };
  __device__ OwnRow own(int r) const { return {as_new(own_[r]), as_new(attn_[r])}; }

  __device__ static void add(const Own& own, const float (&key)[kWidth], float& sum) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float z = own.key[i] + key[i];
      if constexpr (!kSplits) sum = fmaf(own.linear[i], z, sum);
      sum = fmaf(own.absolute[i], fabsf(z), sum);
    }
  }
  __device__ static float logit(const PairArgs&, float sum) { return sum; }

  // By the keys or, with a record of the edge, by the signs of z.
  template <class Rows>
  __device__ void add_gradient(bool is_first, float factor, const Rows& rows, int u, int r,
                               float (&sum)[kVector]) const {
    if constexpr (Rows::kHasSigns) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (is_first) {
          sum[i] = is_positive(rows.signs[u], i) ? factor : 0.f;
        } else {
          add_if(rows.signs[u], sign_bit<kVector>(i), factor, sum[i]);
        }
      }
    } else {
      const auto keys = bits_as<Elements>(rows.keys[u][r].word), own = bits_as<Elements>(own_[r].word);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (is_first) sum[i] = 0.f;
        if (is_sum_positive(keys.value[i], own.value[i])) sum[i] += factor;
      }
    }
  }
  // Of rows of one vector per lane.
  __device__ uint32_t signs(const Row& key) const { return signs_of_sum(key, own_[0]); }
  // Of the edge's part z of the sum. The sum is that of `add`, so that both agree.
  __device__ uint32_t signs(const float (&z)[kVector]) const {
    float own[kVector];
    own_[0].widen(own);
    uint32_t signs = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) signs |= own[i] + z[i] > 0.f ? 1u << sign_bit<kVector>(i) : 0u;
    return signs;
  }
  template <class Rows>
  __device__ void edge_gradient(const PairArgs& args, float factor, const Rows& rows, int u, float (&gradient)[kVector],
                                float (&products)[kVector]) const {
    float key[kVector];
    rows.edges.widen_key(u, key);
    as_new(attn_[0]).widen(gradient);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float of_z = is_positive(rows.signs[u], i) ? factor : factor * args.logit.slope;
      products[i] = fmaf(of_z, key[i], products[i]);
      gradient[i] *= of_z;
    }
  }

  __device__ void finish(const PairArgs& args, float factor_sum, int r, float (&sum)[kVector],
                         float (&product)[kVector]) const {
    float own[kVector], attn[kVector];
    own_[r].widen(own);
    attn_[r].widen(attn);
    finish(args, factor_sum, own, attn, sum, product);
  }
  static __device__ void finish(const PairArgs& args, float factor_sum, const float (&own)[kVector],
                                const float (&attn)[kVector], float (&sum)[kVector], float (&product)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float gradient = fmaf(1.f - args.logit.slope, sum[i], args.logit.slope * factor_sum);
      product[i] = own[i] * gradient;
      sum[i] = attn[i] * gradient;
    }
  }

 private:
  struct Elements {
    T value[kVector];
  };
  static __device__ bool is_positive(uint32_t signs, int i) { return (signs >> sign_bit<kVector>(i) & 1) != 0; }

  Row own_[kRepeat];
  Row attn_[kRepeat];
  float first_;
};

}  // namespace halfgnn::cuda
