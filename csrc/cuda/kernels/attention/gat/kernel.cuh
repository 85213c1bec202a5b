// The forward kernel behind gat_attention.h. Include only where it is instantiated (gat_attention_<type>.cu).
#pragma once

#include "../../core/softmax.cuh"
#include "lane.cuh"

namespace halfgnn::cuda {

struct GatForwardArgs {
  GatGather gather;  // of rows of features; rows are destinations
  const void* attn_src;
  Precise out;
  float* lse;
  void* positive;
};

template <class Config>
class GatForwardLane {
  using T = typename Config::Element;
  static constexpr int kVector = Config::kVector;

 public:
  static constexpr bool kOneHead = Config::kOneHead;
  static constexpr bool kTeams = Config::kTeams;
  static constexpr int kWords = kGatForwardWords;

  __device__ GatForwardLane(const GatForwardArgs& args, int slice, int lane, float* words)
      : args_(args), walk_(args.gather, slice, lane, words) {}
  __device__ auto& window() { return walk_.window; }

  // The whole warp takes part.
  __device__ void run(const Piece& piece) {
    clear();
    walk_.add_edges(
        piece, [&](auto count, int step) { load_entries<decltype(count)::value>(step); },
        [&](const auto& entries) { weigh(entries); }, [](uint32_t, int, float) {});
    finish(piece);
  }
  // The same for a row per group.
  __device__ void run(const GroupRow& row) {
    clear();
    walk_.add_rows(
        row.row, row.degree, [&](auto count, int step) { load_entries<decltype(count)::value>(step); },
        [&](const auto& entries) { weigh_rows(entries); });
    store_row(row.row, row.degree == 0, row.exists, total_, positive_total_);
  }

 private:
  using Entries = typename GatWindow<Config>::Entries;

  __device__ const GatFrame<Config>& frame() const { return walk_.frame(); }
  __device__ void clear() {
    walk_.sums.clear();
    maximum_ = kLowestLogit;
    total_ = positive_total_ = 0.f;
  }

  template <int kCount>
  __device__ void load_entries(int step) {
    float logits[kCount];
    const bool has_logits = !Config::kMayLackLogits || args_.attn_src != nullptr;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      logits[i] = !has_logits ? 0.f : frame().load_logit_of(args_.attn_src, walk_.window.column_of_step(step + i));
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) walk_.window.word(kNodeLogit, step + i) = logits[i];
  }

  // Weights of edges are relative to the maximum so far. When it rises, the sums are brought to the new one.
  __device__ void weigh(const Entries& entries) {
    raise_maximum(frame().max_over_edges(maximum_of(entries)));
    store_weights(entries, [&](int step, bool is_own, float weight) {
      if (is_own) walk_.window.word(kWeight, step) = weight;
    });
  }
  // All edges of a row at once.
  __device__ void weigh_rows(const Entries& entries) {
    maximum_ = frame().max_over_lanes(maximum_of(entries));
    store_weights(entries, [&](int step, bool, float weight) { walk_.window.word(kWeight, step) = weight; });
    total_ = frame().sum_over_lanes(total_);
    if constexpr (Config::kPositive) positive_total_ = frame().sum_over_lanes(positive_total_);
  }
  __device__ float maximum_of(const Entries& entries) {
    auto& window = walk_.window;
    float top = maximum_;
    window.template for_each_step<false>(entries, [&](int step, bool is_own) {
      const float logit = leaky_relu(window.logit_sum(step, walk_.row_logit), args_.gather.slope);
      top = fmaxf(top, is_own ? logit : kLowestLogit);
    });
    return top;
  }
  template <class Store>
  __device__ void store_weights(const Entries& entries, const Store& store) {
    auto& window = walk_.window;
    window.for_each_step(entries, [&](int step, bool is_own) {
      const float sum = window.logit_sum(step, walk_.row_logit);
      const float weight = is_own ? exp_of_difference<T>(leaky_relu(sum, args_.gather.slope) - maximum_) : 0.f;
      total_ += weight;
      if constexpr (Config::kPositive) positive_total_ += sum > 0.f ? weight : 0.f;
      store(step, is_own, window.with_sign(weight * window.multiplier(step), sum > 0.f));
    });
  }
  __device__ void raise_maximum(float maximum) {
    if (!__any_sync(kFullMask, maximum > maximum_)) return;
    const float factor = exp_of_difference<T>(maximum_ - maximum);
    maximum_ = maximum;
    total_ *= factor;
    positive_total_ *= factor;
    walk_.sums.multiply(factor);
  }

  __device__ void finish(const Piece& piece) {
    const float total = frame().sum_over_edges(total_);
    const float positive = Config::kPositive ? frame().sum_over_edges(positive_total_) : 0.f;
    walk_.sums.sum_over_groups(frame());
    if (piece.is_whole_row) {
      store_row(piece.row, piece.is_empty(), frame().is_first_group(), total, positive);
    } else {
      walk_.sums.store_partial(frame(), piece, {maximum_, total, positive, 0.f});
    }
  }
  // writes: whether the lane's group does.
  __device__ void store_row(uint32_t row, bool is_empty, bool writes, float total, float positive) {
    auto& sums = walk_.sums;
    if (is_empty) {  // results are 0 / 1, and lse is 0 + log 1
      maximum_ = 0.f;
      total = 1.f;
    }
    const float scale = reciprocal_of<T>(total);
    if (Config::kPositive || args_.lse != nullptr) {
      if (writes && frame().writes_whole_head())
        __stcs(args_.lse + frame().head_of(row), maximum_ + log_of_sum<T>(total));
    }
    sums.multiply(scale);
    const int64_t first = static_cast<int64_t>(row) * args_.gather.row_elements;
    frame().for_each_result(writes, [&](int r, uint32_t at) {
      store_precise<T>(args_.out, first + at, sums.sum[r]);
      if constexpr (Config::kPositive) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          sums.positive[r][i] = fmaf(-positive * scale, sums.sum[r][i], sums.positive[r][i]);
        }
        store_rounded(static_cast<T*>(args_.positive) + first + at, sums.positive[r]);
      }
    });
  }

  const GatForwardArgs& args_;
  GatWalk<Config> walk_;
  float maximum_;                 // of the head, the same in all its lanes
  float total_, positive_total_;  // of this lane's entries
};

template <class Config>
__global__ void __launch_bounds__(kGatThreads, Config::kMinBlocks) gat_attention_kernel(const GatForwardArgs args) {
  run_gat_lane<GatForwardLane<Config>>(args);
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
  kernel.gather = gat_gather(args, plan, args.feat, args.attn_dst, partials);
  kernel.attn_src = args.attn_src;
  kernel.out = args.out;
  kernel.lse = static_cast<float*>(args.lse);
  kernel.positive = args.positive;
  return args.positive == nullptr ? gat_attention_with<T, GatSums::kAll>(kernel, plan, launch)
                                  : gat_attention_with<T, GatSums::kPositive>(kernel, plan, launch);
}

}  // namespace halfgnn::cuda
