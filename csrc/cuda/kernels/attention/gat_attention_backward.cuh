// The kernels behind gat_attention_backward. Include only where they are instantiated
// (gat_attention_backward_<type>.cu).
//
// First, for every destination v and head: delta[v] = <g[v], out[v]>, the gradient of attn_dst, and a record of what
// the edges of v need. Then a pass over the out-edges of every source u, which gathers g[v] and one record a head.
#pragma once

#include "gat_attention_lane.cuh"

namespace halfgnn::cuda {

// ---- Destinations. (destination, head) pairs are the rows of matrices of `dim` columns.

struct GatPrepareArgs {
  int64_t pairs;
  int32_t heads;
  int32_t vectors;     // of a pair
  int32_t log2_lanes;  // of a pair
  const void* grad;
  Precise out;
  const void* positive;
  const void* attn_dst;
  const float* lse;
  bool logit_is_float;
  float slope;
  void* grad_attn_dst;
  float4* records;
};

template <typename T, int kVector>
__global__ void __launch_bounds__(kGatThreads) gat_prepare_backward_kernel(const GatPrepareArgs args) {
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kGatWarps + threadIdx.x / kWarpSize;
  const int64_t first = warp << (5 - args.log2_lanes);
  if (first >= args.pairs) return;  // whole warps
  const int own = lane & ((1 << args.log2_lanes) - 1);
  const int64_t wanted = first + (lane >> args.log2_lanes), pair = wanted < args.pairs ? wanted : args.pairs - 1;
  const float logit = load_logit<T>(args.attn_dst, args.logit_is_float, static_cast<uint64_t>(pair));
  const float lse = __ldg(args.lse + pair);
  float delta = 0.f, product = 0.f;
  for (int vector = own; vector < args.vectors; vector += 1 << args.log2_lanes) {
    const int64_t at = (pair * args.vectors + vector) * kVector;
    float out[kVector], positive[kVector];
    const auto grad = Fragment<T, kVector>::load(static_cast<const T*>(args.grad) + at);
    const auto row = Fragment<T, kVector>::load_streaming(static_cast<const T*>(args.positive) + at);
    load_precise<T>(args.out, at, out);
    row.widen(positive);
    delta = add_dot<T, kVector>(out, grad, delta);
    product = add_dot<T, kVector>(positive, grad, product);
  }
  for (int distance = 1; distance < 1 << args.log2_lanes; distance *= 2) {
    delta += __shfl_xor_sync(kFullMask, delta, distance);
    product += __shfl_xor_sync(kFullMask, product, distance);
  }
  if (own != 0 || wanted >= args.pairs) return;
  args.records[pair] = make_float4(logit, lse, delta, 0.f);
  if (args.grad_attn_dst != nullptr) {
    store_result<T>(args.grad_attn_dst, args.logit_is_float, static_cast<uint64_t>(pair), (1.f - args.slope) * product);
  }
}

template <typename T, int kVector>
cudaError_t launch_gat_prepare(const GatArgs& args, float4* records, const Launch& launch) {
  GatPrepareArgs kernel{};
  kernel.pairs = args.num_cols * args.heads;
  kernel.heads = static_cast<int32_t>(args.heads);
  kernel.vectors = static_cast<int32_t>(args.dim / kVector);
  kernel.log2_lanes = log2_ceil(kernel.vectors) < 5 ? log2_ceil(kernel.vectors) : 5;
  kernel.grad = args.grad;
  kernel.out = args.out;
  kernel.positive = args.positive;
  kernel.attn_dst = args.attn_dst;
  kernel.lse = static_cast<const float*>(args.lse);
  kernel.logit_is_float = args.logit_type == DType::kFloat;
  kernel.slope = static_cast<float>(args.negative_slope);
  kernel.grad_attn_dst = args.grad_attn_dst;
  kernel.records = records;
  const int64_t blocks = ceil_div(kernel.pairs << kernel.log2_lanes, kGatThreads);
  return cuda::launch(gat_prepare_backward_kernel<T, kVector>, blocks, kGatThreads, launch.stream, kernel);
}

template <typename T>
cudaError_t gat_prepare_backward_of(const GatArgs& args, int vector, float4* records, const Launch& launch) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  if (vector == widest) return launch_gat_prepare<T, widest>(args, records, launch);
  if (vector == widest / 2) return launch_gat_prepare<T, widest / 2>(args, records, launch);
  if constexpr (widest == 8) {
    if (vector == 2) return launch_gat_prepare<T, 2>(args, records, launch);
  }
  return launch_gat_prepare<T, 1>(args, records, launch);
}

// ---- Sources.

struct GatBackwardArgs {
  GatGather gather;
  const void* feat;
  const void* attn_src;
  const float4* records;
  void* grad_feat;
  void* grad_attn_src;
  void* grad_edge_logits;
  AttentionPartials partials;
  float* row_parts;
};

template <class Config>
class GatBackwardLane : public GatLane<Config> {
  using Base = GatLane<Config>;
  using typename Base::Row;
  using typename Base::T;
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;

 public:
  __device__ GatBackwardLane(const GatBackwardArgs& args, int slice, int lane, float* pairs, uint32_t row,
                             uint32_t position)
      : Base(args.gather, slice, lane, pairs, position), args_(args), next_logit_(own_logit(row)) {}

  // The whole warp takes part. Rows come in order.
  __device__ void run(const GatPiece& piece, bool skips) {
    if constexpr (Config::kDots) {  // short of registers
      logit_ = own_logit(piece.row);
    } else {
      logit_ = next_logit_;
      const uint32_t last_row = static_cast<uint32_t>(this->gather_.rows.num_rows) - 1;
      next_logit_ = own_logit(piece.row < last_row ? piece.row + 1 : last_row);
    }
    if (skips) return;
    this->clear();
    share_ = positive_share_ = 0.f;
    if constexpr (Config::kDots) load_own(piece.row, this->own_);
    for (uint32_t position = piece.begin; position < piece.end;) {
      if (!this->is_open(position)) open(position);
      const int begin = static_cast<int>(position - this->base_);
      const uint32_t left = piece.end - this->base_;
      const int end = static_cast<int>(left < this->window() ? left : this->window());
      weigh(begin, end);
      this->share_pairs();
      this->add_edges(begin, end, [&](uint32_t edge, int at, float dot) { use_dot(edge, at, dot); });
      this->share_pairs();
      position = this->base_ + static_cast<uint32_t>(end);
    }
    finish(piece);
  }

 private:
  __device__ float own_logit(uint32_t row) const {
    return load_logit<T>(args_.attn_src, this->gather_.logit_is_float, this->head_of(row));
  }
  __device__ void load_own(uint32_t row, Row (&own)[kRepeat]) const {
    const T* first =
        static_cast<const T*>(args_.feat) + static_cast<uint64_t>(row) * this->gather_.row_elements + this->first();
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) own[r] = Row::load(first + this->distance(r));
  }

  __device__ void open(uint32_t position) {
    this->open_window(position, [&](auto count, int step) {
      constexpr int kCount = decltype(count)::value;
      this->template load_edges<kCount>(step);
      float4 records[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint32_t column = this->of_step(this->column_, step + i);
        records[i] = __ldg(args_.records + this->head_of(column));
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        this->pair(kNodeLogit, step + i) = records[i].x;
        this->pair(kLse, step + i) = records[i].y;
        this->pair(kDelta, step + i) = records[i].z;
      }
    });
  }

  __device__ void weigh(int begin, int end) {
    this->for_each_step(begin, end, [&](int step, bool is_own) {
      if (!is_own) return;
      const float sum = this->logit_sum(step, logit_);
      const float weight = exp_of_difference<T>(leaky_relu(sum, this->gather_.slope) - this->pair(kLse, step));
      const float share = weight * this->pair(kDelta, step);
      this->pair(kWeight, step) = Base::with_sign(weight * this->kept(step), sum > 0.f);
      if constexpr (Config::kDots) {
        this->pair(kShare, step) = share;
      } else {
        share_ += share;
        positive_share_ += sum > 0.f ? share : 0.f;
      }
    });
  }

  // <x, own row> of an edge: the gradient of its logit.
  __device__ void use_dot(uint32_t edge, int at, float dot) {
    const float weight = this->word_at(kWeight, at), share = this->word_at(kShare, at);
    const float slope = __float_as_uint(weight) >> 31 != 0 ? this->gather_.slope : 1.f;
    const float gradient = (fabsf(weight) * dot - share) * slope;
    share_ += gradient;
    store_result<T>(args_.grad_edge_logits, this->gather_.logit_is_float, this->head_of(edge), gradient);
  }

  __device__ void finish(const GatPiece& piece) {
    const float share = this->sum_over_edges(share_);
    const float positive_share = Config::kDots ? 0.f : this->sum_over_edges(positive_share_);
    this->sum_over_groups();
    if (!piece.is_whole_row) {
      if (this->writes_head() && this->tile() == 0) {
        args_.partials.store_sums(piece.slot, this->gather_.layout.heads, this->head_,
                                  {0.f, share, positive_share, 0.f});
      }
      this->store_partial(args_.partials, piece);
      return;
    }
    float gradient = share;
    if constexpr (!Config::kDots) {
      gradient = logit_gradient(piece.row);
      const float slope = this->gather_.slope;
      // One of the tiles takes what concerns them all.
      if (this->tile() == 0) gradient -= slope * share + (1.f - slope) * positive_share;
    }
    const auto tiles = static_cast<uint32_t>(this->gather_.layout.tiles);
    if (this->writes_head() && tiles > 1) {
      args_.row_parts[this->head_of(piece.row) * tiles + static_cast<uint32_t>(this->tile())] = gradient;
    } else if (this->writes_head()) {
      store_result<T>(args_.grad_attn_src, this->gather_.logit_is_float, this->head_of(piece.row), gradient);
    }
    T* result = static_cast<T*>(args_.grad_feat) + static_cast<uint64_t>(piece.row) * this->gather_.row_elements;
    this->for_each_result([&](int r, uint32_t at) { store_rounded(result + at, this->sum_[r]); });
  }

  // What the lane's tile adds to the gradient of attn_src: slope <h, dh> + (1 - slope) <h, Q>.
  __device__ float logit_gradient(uint32_t row) const {
    Row own[kRepeat];
    load_own(row, own);
    const float slope = this->gather_.slope;
    float dot = 0.f;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float values[kVector], part = 0.f;
      own[r].widen(values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        part += values[i] * (slope * this->sum_[r][i] + (1.f - slope) * this->positive_[r][i]);
      }
      dot += r < this->num_read() ? part : 0.f;
    }
    return this->sum_over_lanes(dot);
  }

  const GatBackwardArgs& args_;
  float logit_, next_logit_;      // attn_src of this row and the next
  float share_, positive_share_;  // B and C of this lane's pairs; with dots the gradient of attn_src
};

template <class Config>
__global__ void __launch_bounds__(kGatThreads, Config::kMinBlocks)
    gat_attention_backward_kernel(const GatBackwardArgs args) {
  __shared__ float pairs[kGatWarps][Config::kOneHead ? 1 : kGatBackwardWords * kGatPairs];
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  float* const own_pairs = pairs[threadIdx.x / kWarpSize];
  for_each_gat_piece(args.gather, lane, [&](int slice, uint32_t row, uint32_t position) {
    return GatBackwardLane<Config>(args, slice, lane, own_pairs, row, position);
  });
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
  kernel.gather = gat_gather(args, plan, args.grad);
  kernel.gather.needs_edges = kernel.gather.needs_edges || sums == GatSums::kDots;
  kernel.feat = args.feat;
  kernel.attn_src = args.attn_src;
  kernel.records = space.records;
  kernel.grad_feat = args.grad_feat;
  kernel.grad_attn_src = args.grad_attn_src;
  kernel.grad_edge_logits = args.grad_edge_logits;
  kernel.partials = space.partials;
  kernel.row_parts = space.row_parts;
  return sums == GatSums::kDots ? gat_backward_with<T, GatSums::kDots>(kernel, plan, launch)
                                : gat_backward_with<T, GatSums::kPositive>(kernel, plan, launch);
}

// ---- Gradients of edge logits where a head is wider than a warp: a kernel of its own, which gathers once more. A warp
// takes 32 positions, and works on one edge and head at a time.

struct GatEdgeArgs {
  GatGather gather;
  int32_t dim;
  const void* feat;
  const void* attn_src;
  const float4* records;
  void* grad_edge_logits;
};

template <typename T, int kVector>
__global__ void __launch_bounds__(kGatThreads, 7) gat_edge_gradient_kernel(const GatEdgeArgs args) {
  const GatGather& gather = args.gather;
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  const int64_t base =
      (static_cast<int64_t>(blockIdx.x) * kGatWarps + threadIdx.x / kWarpSize) * static_cast<int64_t>(kWarpSize);
  if (base >= gather.rows.num_edges) return;  // whole warps
  const int64_t last = gather.rows.num_edges - 1, position = base + lane < last ? base + lane : last;
  const uint32_t own_column = gather.columns.id(position), own_edge = gather.edge_ids.id(position);
  uint32_t own_row = 0;  // the last that starts at or before the position
  for (auto end = static_cast<uint32_t>(gather.rows.num_rows); end - own_row > 1;) {
    const uint32_t middle = own_row + (end - own_row) / 2;
    const bool passes = gather.rows.indptr.offset(middle) <= position;
    own_row = passes ? middle : own_row;
    end = passes ? end : middle;
  }
  const int count = static_cast<int>(last + 1 - base < kWarpSize ? last + 1 - base : kWarpSize);
  for (int i = 0; i < count; ++i) {
    const uint32_t row = __shfl_sync(kFullMask, own_row, i), column = __shfl_sync(kFullMask, own_column, i);
    const uint32_t edge = __shfl_sync(kFullMask, own_edge, i);
    for (int head = 0; head < gather.layout.heads; ++head) {
      const auto heads = static_cast<uint32_t>(gather.layout.heads);
      const T* x = static_cast<const T*>(args.feat) + (static_cast<uint64_t>(row) * heads + head) * args.dim;
      const T* y = static_cast<const T*>(gather.source) + (static_cast<uint64_t>(column) * heads + head) * args.dim;
      float dot = 0.f;
#pragma unroll 4
      for (int at = lane * kVector; at < args.dim; at += kWarpSize * kVector) {
        float values[kVector];
        Fragment<T, kVector>::load(x + at).widen(values);
        dot = add_dot<T, kVector>(values, Fragment<T, kVector>::load(y + at), dot);
      }
      for (int distance = 1; distance < kWarpSize; distance *= 2) dot += __shfl_xor_sync(kFullMask, dot, distance);
      const float4 record = __ldg(args.records + static_cast<uint64_t>(column) * heads + head);
      const uint64_t at = static_cast<uint64_t>(edge) * heads + head;
      float sum =
          record.x + load_logit<T>(args.attn_src, gather.logit_is_float, static_cast<uint64_t>(row) * heads + head);
      sum += load_logit<T>(gather.edge_logits, gather.logit_is_float, at);
      const float weight = exp_of_difference<T>(leaky_relu(sum, gather.slope) - record.y);
      const float gradient = weight * (gather.dropout.factor(edge, static_cast<uint32_t>(head)) * dot - record.z);
      if (lane == 0) {
        store_result<T>(args.grad_edge_logits, gather.logit_is_float, at, gradient * (sum > 0.f ? 1.f : gather.slope));
      }
    }
  }
}

template <typename T, int kVector>
cudaError_t launch_gat_edge_gradient(const GatEdgeArgs& kernel, const Launch& launch) {
  const int64_t blocks = ceil_div(kernel.gather.rows.num_edges, kGatThreads);
  return cuda::launch(gat_edge_gradient_kernel<T, kVector>, blocks, kGatThreads, launch.stream, kernel);
}

template <typename T>
cudaError_t gat_edge_gradient_of(const GatArgs& args, const GatPlan& plan, const float4* records,
                                 const Launch& launch) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  GatEdgeArgs kernel{};
  kernel.gather = gat_gather(args, plan, args.grad);
  kernel.dim = static_cast<int32_t>(args.dim);
  kernel.feat = args.feat;
  kernel.attn_src = args.attn_src;
  kernel.records = records;
  kernel.grad_edge_logits = args.grad_edge_logits;
  return plan.vector == widest ? launch_gat_edge_gradient<T, widest>(kernel, launch)
                               : launch_gat_edge_gradient<T, 1>(kernel, launch);
}

}  // namespace halfgnn::cuda
