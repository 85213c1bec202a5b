// The kernels behind gat_attention_backward. Include only where they are instantiated
// (gat_attention_backward_<type>.cu).
//
// First the records of all destinations (destinations.cuh), then a pass over the out-edges of every source u, which
// gathers g[v] and one record per head. If a head is wider than a warp, gradients of edge logits need another pass
// (edge_gradients.cuh).
#pragma once

#include "../../core/softmax.cuh"
#include "destinations.cuh"
#include "edge_gradients.cuh"
#include "lane.cuh"

namespace halfgnn::cuda {

struct GatBackwardArgs {
  GatGather gather;  // of rows of the gradient; rows are sources
  const void* feat;
  const GatRecord* records;
  void* grad_feat;
  void* grad_attn_src;
  void* grad_edge_logits;
  float* row_parts;
};

template <class Config>
class GatBackwardLane {
  using T = typename Config::Element;
  using Row = typename Config::Row;
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;

 public:
  static constexpr bool kOneHead = Config::kOneHead;
  static constexpr bool kTeams = Config::kTeams;
  static constexpr int kWords = kGatBackwardWords;

  __device__ GatBackwardLane(const GatBackwardArgs& args, int slice, int lane, float* words)
      : args_(args), walk_(args.gather, slice, lane, words) {}
  __device__ auto& window() { return walk_.window; }

  // The whole warp takes part.
  __device__ void run(const Piece& piece) {
    clear();
    if constexpr (Config::kDots) frame().load_row(args_.feat, piece.row, walk_.sums.own);
    walk_.add_edges(
        piece, [&](auto count, int step) { load_entries<decltype(count)::value>(step); },
        [&](const auto& entries) { weigh(entries); },
        [&](uint32_t edge, int place, float dot) { use_dot(edge, place, dot); });
    finish(piece);
  }
  // The same for a row per group.
  __device__ void run(const GroupRow& row) {
    clear();
    walk_.add_rows(
        row.row, row.degree, [&](auto count, int step) { load_entries<decltype(count)::value>(step); },
        [&](const auto& entries) { weigh(entries); });
    store_row(row.row, row.exists, frame().sum_over_lanes(share_));
  }

 private:
  using Entries = typename GatWindow<Config>::Entries;

  __device__ const GatFrame<Config>& frame() const { return walk_.frame(); }
  __device__ void clear() {
    walk_.sums.clear();
    share_ = 0.f;
  }

  template <int kCount>
  __device__ void load_entries(int step) {
    auto& window = walk_.window;
    GatRecord records[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      records[i] = load_record(args_.records + frame().head_of(window.column_of_step(step + i)));
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      window.word(kNodeLogit, step + i) = records[i].logit;
      window.word(kLse, step + i) = records[i].lse;
      window.word(kDelta, step + i) = records[i].delta;
    }
  }

  // Without kTeams a window has edges of several rows, and the words of entries of the others stay. With it the window
  // is for these rows alone, and weights of other entries are 0.
  __device__ void weigh(const Entries& entries) {
    auto& window = walk_.window;
    const float slope = args_.gather.slope;
    window.for_each_step(entries, [&](int step, bool is_own) {
      if (!Config::kTeams && !is_own) return;
      const float sum = window.logit_sum(step, walk_.row_logit);
      const float logit = leaky_relu(sum, slope) - window.word(kLse, step);
      const float weight = is_own ? exp_of_difference<T>(logit) : 0.f;
      const float share = is_own ? weight * window.word(kDelta, step) : 0.f;
      window.word(kWeight, step) = window.with_sign(weight * window.multiplier(step), sum > 0.f);
      if constexpr (Config::kDots) {
        window.word(kShare, step) = share;
      } else {
        share_ += sum > 0.f ? share : share * slope;
      }
    });
  }

  // <x, own row> of an edge: the gradient of its logit.
  __device__ void use_dot(uint32_t edge, int place, float dot) {
    const float weight = walk_.window.word_at(kWeight, place), share = walk_.window.word_at(kShare, place);
    const float slope = __float_as_uint(weight) >> 31 != 0 ? args_.gather.slope : 1.f;
    const float gradient = (fabsf(weight) * dot - share) * slope;
    share_ += gradient;
    store_result<T>(args_.grad_edge_logits, args_.gather.logit_is_float, frame().head_of(edge), gradient);
  }

  __device__ void finish(const Piece& piece) {
    const float share = frame().sum_over_edges(share_);
    walk_.sums.sum_over_groups(frame());
    if (piece.is_whole_row) {
      store_row(piece.row, frame().is_first_group(), share);
    } else {
      walk_.sums.store_partial(frame(), piece, {0.f, share, 0.f, 0.f});
    }
  }
  // writes: whether the lane's group does.
  __device__ void store_row(uint32_t row, bool writes, float share) const {
    store_logit_gradient(row, writes, share);
    T* result = static_cast<T*>(args_.grad_feat) + static_cast<uint64_t>(row) * args_.gather.row_elements;
    frame().for_each_result(writes, [&](int r, uint32_t at) { store_rounded(result + at, walk_.sums.sum[r]); });
  }

  // The gradient of attn_src or, with several tiles, this tile's part of it.
  __device__ void store_logit_gradient(uint32_t row, bool writes, float share) const {
    float gradient = share;
    if constexpr (!Config::kDots) {
      gradient = logit_gradient(row);
      if (frame().tile() == 0) gradient -= share;  // one of the tiles takes what concerns them all
    }
    if (!writes || !frame().writes_head()) return;
    const auto tiles = static_cast<uint32_t>(args_.gather.layout.tiles);
    if (tiles > 1) {
      args_.row_parts[frame().head_of(row) * tiles + static_cast<uint32_t>(frame().tile())] = gradient;
    } else {
      store_result<T>(args_.grad_attn_src, args_.gather.logit_is_float, frame().head_of(row), gradient);
    }
  }
  // What the lane's tile adds to the gradient of attn_src: slope <h, dh> + (1 - slope) <h, Q>.
  __device__ float logit_gradient(uint32_t row) const {
    const auto& sums = walk_.sums;
    Row own[kRepeat];
    frame().load_row(args_.feat, row, own);
    const float slope = args_.gather.slope;
    float dot = 0.f;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float values[kVector], part = 0.f;
      own[r].widen(values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        part += values[i] * (slope * sums.sum[r][i] + (1.f - slope) * sums.positive[r][i]);
      }
      dot += r < frame().num_read() ? part : 0.f;
    }
    return frame().sum_over_lanes(dot);
  }

  const GatBackwardArgs& args_;
  GatWalk<Config> walk_;
  // Of this lane's entries: what deltas take from the gradient of attn_src; with dots, that gradient.
  float share_;
};

template <class Config>
__global__ void __launch_bounds__(kGatThreads, Config::kMinBlocks)
    gat_attention_backward_kernel(const GatBackwardArgs args) {
  run_gat_lane<GatBackwardLane<Config>>(args);
}

template <class Config>
cudaError_t launch_gat_backward(const GatBackwardArgs& kernel, const GatPlan& plan, const Launch& launch) {
  return cuda::launch(gat_attention_backward_kernel<Config>, gat_blocks(plan), kGatThreads, launch.stream, kernel);
}

template <typename T, GatSums kSums>
cudaError_t gat_backward_with(const GatBackwardArgs& kernel, const GatPlan& plan, const Launch& launch) {
  return with_gat_config<T, kSums>(
      plan, [&](auto config) { return launch_gat_backward<decltype(config)>(kernel, plan, launch); });
}

template <typename T>
cudaError_t gat_attention_backward_of(const GatArgs& args, const GatPlan& plan, GatSums sums,
                                      const GatBackwardSpace& space, const Launch& launch) {
  GatBackwardArgs kernel{};
  kernel.gather = gat_gather(args, plan, args.grad, args.attn_src, space.partials);
  kernel.gather.needs_edges = kernel.gather.needs_edges || sums == GatSums::kDots;
  kernel.feat = args.feat;
  kernel.records = space.records;
  kernel.grad_feat = args.grad_feat;
  kernel.grad_attn_src = args.grad_attn_src;
  kernel.grad_edge_logits = args.grad_edge_logits;
  kernel.row_parts = space.row_parts;
  return sums == GatSums::kDots ? gat_backward_with<T, GatSums::kDots>(kernel, plan, launch)
                                : gat_backward_with<T, GatSums::kPositive>(kernel, plan, launch);
}

}  // namespace halfgnn::cuda
