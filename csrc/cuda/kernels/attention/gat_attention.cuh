// The forward kernel behind gat_attention.h. Include only where it is instantiated (gat_attention_<type>.cu).
#pragma once

#include "gat_attention_lane.cuh"

namespace halfgnn::cuda {

struct GatForwardArgs {
  GatGather gather;
  const void* attn_src;
  const void* attn_dst;
  Precise out;
  float* lse;
  void* positive;
  AttentionPartials partials;
};

template <class Config>
class GatForwardLane : public GatLane<Config> {
  using Base = GatLane<Config>;
  using typename Base::T;
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;

 public:
  __device__ GatForwardLane(const GatForwardArgs& args, int slice, int lane, float* pairs, uint32_t row,
                            uint32_t position)
      : Base(args.gather, slice, lane, pairs, position), args_(args), next_logit_(own_logit(row)) {}

  // The whole warp takes part. Rows come in order.
  __device__ void run(const GatPiece& piece, bool skips) {
    logit_ = next_logit_;
    const uint32_t last_row = static_cast<uint32_t>(this->gather_.rows.num_rows) - 1;
    next_logit_ = own_logit(piece.row < last_row ? piece.row + 1 : last_row);
    if (skips) return;
    this->clear();
    // A row without edges: results are 0 / 1, and lse is 0 + log 1.
    const bool is_empty = piece.begin == piece.end;
    maximum_ = is_empty ? 0.f : kLowestLogit;
    total_ = is_empty && this->in_step() == 0 ? 1.f : 0.f;
    positive_total_ = 0.f;
    for (uint32_t position = piece.begin; position < piece.end;) {
      if (!this->is_open(position)) open(position);
      const int begin = static_cast<int>(position - this->base_);
      const uint32_t left = piece.end - this->base_;
      const int end = static_cast<int>(left < this->window() ? left : this->window());
      weigh(begin, end);
      this->share_pairs();
      this->add_edges(begin, end, [](uint32_t, int, float) {});
      this->share_pairs();
      position = this->base_ + static_cast<uint32_t>(end);
    }
    finish(piece);
  }

 private:
  __device__ float own_logit(uint32_t row) const {
    return load_logit<T>(args_.attn_dst, this->gather_.logit_is_float, this->head_of(row));
  }

  __device__ void open(uint32_t position) {
    this->open_window(position, [&](auto count, int step) {
      constexpr int kCount = decltype(count)::value;
      this->template load_edges<kCount>(step);
      float logits[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint32_t column = this->of_step(this->column_, step + i);
        logits[i] = load_logit<T>(args_.attn_src, this->gather_.logit_is_float, this->head_of(column));
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) this->pair(kNodeLogit, step + i) = logits[i];
    });
  }

  // Weights of edges are relative to the maximum so far, to which the sums are brought where it rises.
  __device__ void weigh(int begin, int end) {
    const float slope = this->gather_.slope;
    float top = maximum_;
    this->for_each_step(begin, end, [&](int step, bool is_own) {
      const float logit = leaky_relu(this->logit_sum(step, logit_), slope);
      top = fmaxf(top, is_own ? logit : kLowestLogit);
    });
    top = this->max_over_edges(top);
    if (__any_sync(kFullMask, top > maximum_)) {
      const float factor = exp_of_difference<T>(maximum_ - top);
      maximum_ = top;
      total_ *= factor;
      positive_total_ *= factor;
      this->multiply(factor);
    }
    this->for_each_step(begin, end, [&](int step, bool is_own) {
      const float sum = this->logit_sum(step, logit_);
      const float weight = is_own ? exp_of_difference<T>(leaky_relu(sum, slope) - maximum_) : 0.f;
      total_ += weight;
      if constexpr (Config::kPositive) positive_total_ += sum > 0.f ? weight : 0.f;
      if (is_own) this->pair(kWeight, step) = Base::with_sign(weight * this->kept(step), sum > 0.f);
    });
  }

  __device__ void finish(const GatPiece& piece) {
    const float total = this->sum_over_edges(total_);
    const float positive = Config::kPositive ? this->sum_over_edges(positive_total_) : 0.f;
    this->sum_over_groups();
    if (!piece.is_whole_row) {
      if (this->writes_head() && this->tile() == 0) {
        args_.partials.store_sums(piece.slot, this->gather_.layout.heads, this->head_,
                                  {maximum_, total, positive, 0.f});
      }
      this->store_partial(args_.partials, piece);
      return;
    }
    const float scale = 1.f / total;
    if constexpr (Config::kPositive) {
      if (this->writes_head() && this->tile() == 0) {
        __stcs(args_.lse + this->head_of(piece.row), maximum_ + logf(total));
      }
    }
    this->multiply(scale);
    const int64_t first = static_cast<int64_t>(piece.row) * this->gather_.row_elements;
    this->for_each_result([&](int r, uint32_t at) {
      store_precise<T>(args_.out, first + at, this->sum_[r]);
      if constexpr (Config::kPositive) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          this->positive_[r][i] = fmaf(-positive * scale, this->sum_[r][i], this->positive_[r][i]);
        }
        store_rounded(static_cast<T*>(args_.positive) + first + at, this->positive_[r]);
      }
    });
  }

  const GatForwardArgs& args_;
  float logit_, next_logit_;      // attn_dst of this row and the next
  float maximum_;                 // of the head, the same in all its lanes
  float total_, positive_total_;  // of this lane's pairs
};

template <class Config>
__global__ void __launch_bounds__(kGatThreads, Config::kMinBlocks) gat_attention_kernel(const GatForwardArgs args) {
  __shared__ float pairs[kGatWarps][Config::kOneHead ? 1 : kGatForwardWords * kGatPairs];
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  float* const own_pairs = pairs[threadIdx.x / kWarpSize];
  for_each_gat_piece(args.gather, lane, [&](int slice, uint32_t row, uint32_t position) {
    return GatForwardLane<Config>(args, slice, lane, own_pairs, row, position);
  });
}

template <class Config>
cudaError_t launch_gat_attention(const GatForwardArgs& kernel, const GatPlan& plan, const Launch& launch) {
  return cuda::launch(gat_attention_kernel<Config>, gat_blocks(plan), kGatThreads, launch.stream, kernel);
}

template <typename T, GatSums kSums>
cudaError_t gat_attention_with(const GatForwardArgs& kernel, const GatPlan& plan, const Launch& launch) {
  return with_gat_config<T, kSums>(
      plan, [&](auto config) { return launch_gat_attention<decltype(config)>(kernel, plan, launch); });
}

template <typename T>
cudaError_t gat_attention_of(const GatArgs& args, const GatPlan& plan, const AttentionPartials& partials,
                             const Launch& launch) {
  GatForwardArgs kernel{};
  kernel.gather = gat_gather(args, plan, args.feat);
  kernel.attn_src = args.attn_src;
  kernel.attn_dst = args.attn_dst;
  kernel.out = args.out;
  kernel.lse = static_cast<float*>(args.lse);
  kernel.positive = args.positive;
  kernel.partials = partials;
  return args.lse == nullptr ? gat_attention_with<T, GatSums::kAll>(kernel, plan, launch)
                             : gat_attention_with<T, GatSums::kPositive>(kernel, plan, launch);
}

}  // namespace halfgnn::cuda
