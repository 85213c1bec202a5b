// Logits of GATv2 on tensor cores. The interface: ../score.cuh.
//
// LeakyReLU(z) = slope z + (1 - slope) relu(z), and relu(own + key) = own + max(key, -own), which rounds nothing. So
// with dots of attn alone, whose products are exact,
//
//   logit = <attn, own> + slope <attn, key> + (1 - slope) <attn, max(key, -own)>
//
// The derivative is slope + (1 - slope) (key > -own). The sum of the gradients of logits over the edges whose element
// is positive is a sum of factor * row, of rows of ones and zeros.
//
// A key of -inf makes the logit -inf for a positive attn. If the slope is 0, the linear part is left out, so that
// infinite keys make no nan. If the slope is below 0 or above 1, they do.
#pragma once

#include "../pass.h"
#include "rows.cuh"

namespace halfgnn::cuda {

// Of both halves of a word: max(x, y), or nan if one of them is; and x > y as 1 or 0.
template <typename T>
__device__ unsigned int max_of_pairs(unsigned int x, unsigned int y) {
  using Pair = typename Convert<T>::Pair;
  return bits_as<unsigned int>(__hmax2_nan(bits_as<Pair>(x), bits_as<Pair>(y)));
}
template <typename T>
__device__ unsigned int is_greater(unsigned int x, unsigned int y) {
  using Pair = typename Convert<T>::Pair;
  return bits_as<unsigned int>(__hgt2(bits_as<Pair>(x), bits_as<Pair>(y)));
}

// f(x) for the words of both.
template <class Function>
__device__ uint4 of_words(const uint4& x, const uint4& y, const Function& f) {
  return {f(x.x, y.x), f(x.y, y.y), f(x.z, y.z), f(x.w, y.w)};
}

template <typename T, PairPass kPass, int kBlocks>
class LeakyTensorScore {
  using OwnRow = TensorOwnRow<T, kBlocks>;
  using Rows = typename TensorSums<T, kBlocks>::Rows;
  static constexpr bool kForward = kPass == PairPass::kForward;

 public:
  struct Dots {
    typename OwnRow::Dots linear, maxima;
  };

  __device__ LeakyTensorScore(const char* attn_row, int chunks, const TensorLane& lane) {
    attn_.load(attn_row, chunks, lane);
  }
  __device__ void load(const char* own_row, int chunks, const TensorLane& lane) {
    typename OwnRow::Dots dots;
    const TensorBatch<TensorBatchKind::kHalf> one(0, 1, chunks, kAllBlocks);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      typename OwnRow::Rows rows;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 words = load_chunk(own_row, lane.row_chunk(block, j), chunks);
        rows.words[0][j] = words;
        by_row_[block][j] = negated(words);
      }
      attn_.add_dots(one, rows, block, dots);
      if constexpr (!kForward) {
        by_pair_[block] = negated(load_chunk(own_row, lane.pair_chunk<kBlocks>(block), chunks));
      }
    }
    constant_ = lane.of_own_group(dots.of_edge(0));
  }

  template <class Batch>
  __device__ void add_dots(const Batch& batch, const typename OwnRow::Rows& rows, int block, Dots& dots) const {
    attn_.add_dots(batch, rows, block, dots.linear);
    typename OwnRow::Rows maxima;
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) maxima.words[i][j] = of_words(rows.words[i][j], by_row_[block][j], max_of_pairs<T>);
    }
    attn_.add_dots(batch, maxima, block, dots.maxima);
  }
  __device__ float logit(const PairArgs& args, const Dots& dots, int i) const {
    const float slope = args.logit.slope;
    const float linear = slope == 0.f ? 0.f : dots.linear.of_edge(i);
    return fmaf(slope, linear, fmaf(2 * args.logit.absolute, dots.maxima.of_edge(i), constant_));
  }

  // Ones where z is positive.
  template <class Batch>
  __device__ Rows terms(const Batch&, const Rows& rows, int block) const {
    Rows ones{};
#pragma unroll
    for (int i = 0; i < 2 * Batch::kHalves; ++i)
      ones.words[i] = of_words(rows.words[i], by_pair_[block], is_greater<T>);
    return ones;
  }

  __device__ static void finish(const PairArgs& args, const char* own_chunk, const char* attn_chunk, float factor_sum,
                                float (&sum)[kTensorChunk], float (&product)[kTensorChunk]) {
    const float slope = args.logit.slope;
    float own[kTensorChunk], attn[kTensorChunk];
    Fragment<T, kTensorChunk>::load(own_chunk).widen(own);
    Fragment<T, kTensorChunk>::load(attn_chunk).widen(attn);
#pragma unroll
    for (int i = 0; i < kTensorChunk; ++i) {
      const float gradient = fmaf(1.f - slope, sum[i], slope * factor_sum);
      product[i] = own[i] * gradient;
      sum[i] = attn[i] * gradient;
    }
  }

 private:
  static __device__ uint4 load_chunk(const char* row, int chunk, int chunks) {
    uint4 words = {0, 0, 0, 0};
    if (chunk < chunks) words = __ldg(reinterpret_cast<const uint4*>(row + chunk * kMaxAccessBytes));
    return words;
  }
  static __device__ uint4 negated(const uint4& words) {
    constexpr unsigned int kSigns = 0x80008000u;
    return {words.x ^ kSigns, words.y ^ kSigns, words.z ^ kSigns, words.w ^ kSigns};
  }

  OwnRow attn_;
  // The own key with the other sign, as rows are shared (rows.cuh).
  uint4 by_row_[kBlocks][2], by_pair_[kForward ? 1 : kBlocks];
  float constant_;
};

}  // namespace halfgnn::cuda
