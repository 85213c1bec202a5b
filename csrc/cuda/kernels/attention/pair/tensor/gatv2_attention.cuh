// The kernel of GATv2 on tensor cores (sm_80 and later), for heads of whole chunks of 16 bytes. Include only where it
// is instantiated (gatv2_tensor_<type>.cu). It stands beside pair/lanes/gatv2_attention.cuh: the same passes, arguments
// and results, but no records of edges.
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

#include "gatv2_tensor.h"
#include "lane.cuh"

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

template <typename T, PairPass kPairPass, int kBlocks>
class Gatv2TensorScore {
  using OwnRow = TensorOwnRow<T, kBlocks>;
  using Rows = typename TensorSums<T, kBlocks>::Rows;
  static constexpr bool kForward = kPairPass == PairPass::kForward;

 public:
  static constexpr PairKind kKind = PairKind::kGatv2;
  struct Dots {
    typename OwnRow::Dots linear, maxima;
  };

  // attn_row: of one head.
  __device__ Gatv2TensorScore(const char* attn_row, int chunks, const TensorLane& lane) {
    attn_.load(attn_row, chunks, lane);
  }
  // own_row: of one head, the row's own key.
  __device__ void load(const char* own_row, int chunks, const TensorLane& lane) {
    typename OwnRow::Dots dots;
    const TensorBatch<TensorBatchKind::kHalf> one(0, 1, chunks, kAllBlocks);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      typename OwnRow::Rows rows;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 words = load_chunk(own_row, 8 * block + 4 * j + lane.t, chunks);
        rows.words[0][j] = words;
        by_row_[block][j] = negated(words);
      }
      attn_.add_dots(one, rows, block, dots);
      if constexpr (!kForward) by_pair_[block] = negated(load_chunk(own_row, 8 * block + lane.group, chunks));
    }
    constant_ = dots.of_edge(0);
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

  // Ones where z is positive, as the terms of a sum.
  template <class Batch>
  __device__ Rows positive(const Batch&, const Rows& rows, int block) const {
    Rows ones{};
#pragma unroll
    for (int i = 0; i < 2 * Batch::kHalves; ++i)
      ones.words[i] = of_words(rows.words[i], by_pair_[block], is_greater<T>);
    return ones;
  }

  // Of one chunk: turns the sum over edges with a positive z into the gradient of the own key, and what the row adds to
  // that of attn.
  __device__ static void finish(float slope, const char* own_chunk, const char* attn_chunk, float factor_sum,
                                float (&sum)[kTensorChunk], float (&product)[kTensorChunk]) {
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

// At most 128 registers for narrow heads, 168 for their gradients of sources and for wide heads, 255 for those of wide
// ones.
constexpr int gatv2_tensor_min_blocks(PairPass pass, int blocks) {
  return (blocks > 1 ? 3 : 4) - (pass == PairPass::kSources ? 1 : 0);
}

template <typename T, PairPass kPairPass, int kBlocks>
__global__ void __launch_bounds__(kTensorThreads, gatv2_tensor_min_blocks(kPairPass, kBlocks))
    gatv2_tensor_kernel(const PairArgs args) {
  using Lane = PairTensorLane<Gatv2TensorScore, T, kPairPass, kBlocks>;
  __shared__ typename Lane::Shared shared;
  const auto heads = static_cast<uint32_t>(args.layout.heads);
  const uint32_t block = args.layout.by_slice ? blockIdx.x % args.blocks_per_slice : blockIdx.x / heads;
  const uint32_t head = args.layout.by_slice ? blockIdx.x / args.blocks_per_slice : blockIdx.x % heads;
  const int lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  Lane work(args, static_cast<int>(head), shared);
  uint32_t unit = block * kTensorWarps + threadIdx.x / kWarpSize;
  while (unit < args.units.num_units) {
    for_each_piece(args.units, unit, lane, [&](const Piece& piece) { work.run(piece); });
    if constexpr (kPairPass == PairPass::kForward) break;
    unit += args.blocks_per_slice * kTensorWarps;
  }
  if constexpr (kPairPass != PairPass::kForward) work.write_products(block);
}

template <typename T, PairPass kPairPass, int kBlocks>
cudaError_t launch_gatv2_tensor(const PairArgs& args, const Launch& launch) {
  const int64_t blocks = static_cast<int64_t>(args.blocks_per_slice) * args.layout.heads;
  return cuda::launch(gatv2_tensor_kernel<T, kPairPass, kBlocks>, blocks, kTensorThreads, launch.stream, args);
}

template <typename T, PairPass kPairPass>
cudaError_t gatv2_tensor_pass(const PairArgs& args, int64_t dim, const Launch& launch) {
  if (dim <= kTensorBlock) return launch_gatv2_tensor<T, kPairPass, 1>(args, launch);
  return launch_gatv2_tensor<T, kPairPass, 2>(args, launch);
}

// A warp takes one head of a unit. Blocks of a backward take units by turns, as many as leave products.
template <typename T>
cudaError_t gatv2_tensor_of(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  switch (pass) {
    case PairPass::kForward: return gatv2_tensor_pass<T, PairPass::kForward>(args, shape.dim, launch);
    case PairPass::kDestinations: return gatv2_tensor_pass<T, PairPass::kDestinations>(args, shape.dim, launch);
    default: return gatv2_tensor_pass<T, PairPass::kSources>(args, shape.dim, launch);
  }
}

}  // namespace halfgnn::cuda
