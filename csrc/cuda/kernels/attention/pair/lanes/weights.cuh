// From the dots of edges to what their rows are multiplied by, the factors, for GATv2 and dot attention.
//
// Forward: softmax with a running maximum (../../shared/attention.cuh); each group of lanes has its own until the row
// ends. The factor of values is exp(l_e - maximum) m_e. Backward: gradient_weights.cuh.
//
// With tiles, dots are summed up in the workspace, over all tiles of a head, before the first row is added.
#pragma once

#include "../../../core/softmax.cuh"
#include "edges.cuh"

namespace halfgnn::cuda {

// What both have.
template <class Config>
class PairWeights {
 protected:
  using T = typename Config::Element;
  using Frame = PairFrame<Config>;
  using Edges = typename Config::Edges;

 public:
  __device__ PairWeights(const Frame& frame, uint32_t* dropped)
      : frame_(frame), dropped_(dropped), key_logits_(Config::kSplits ? first_key_logit(frame) : nullptr) {}

  __device__ void start_tile(int tile) {
    tile_ = tile;
    factor_sum = 0.f;
  }

  // Draws what the edges of a chunk drop; `edge` is the lane's. For the whole chunk, before rows are in flight: it
  // takes many registers for a while.
  __device__ void draw(uint32_t edge) {
    if (!args().dropout.is_on()) return;
    const int first = frame_.work.head & ~in_warp_mask(), last = first + in_warp_mask();
    uint32_t dropped = 0;
#pragma unroll 1
    for (int quad = first >> 2; quad <= last >> 2; ++quad) {
      const uint32_t bits = args().dropout.dropped(edge, static_cast<uint32_t>(quad));
      dropped |= 4 * quad >= first ? bits << (4 * quad - first) : bits >> (first - 4 * quad);
    }
    __syncwarp();
    dropped_[threadIdx.x] = dropped;
    __syncwarp();
  }

  float maximum = kLowestLogit;  // forward: sums are relative to it
  float factor_sum;              // over owned edges: of weights; backward, of the factors of keys

 protected:
  __device__ const PairArgs& args() const { return frame_.args; }
  // Where in the chunk edge i is of those that the lane owns; of one past the last, the last.
  template <class Batch>
  __device__ int read_owned(const Batch& batch, int i) const {
    return batch.read(frame_.owned_place(batch, i));
  }
  // Of a single edge all lanes have the dot.
  template <class Batch>
  __device__ bool counts(const Batch&) const {
    return Batch::kEdges == Config::kUnroll || frame_.owner() == 0;
  }

  // ---- Logits in two parts, where they come so (score_leaky.cuh), of the edges that a lane owns.

  template <class Owned, class Factors>
  __device__ void load_key_logits(const Owned& owned, Factors& factors) const {
    if constexpr (Config::kSplits) {
#pragma unroll
      for (int i = 0; i < Owned::kOwned; ++i) {
        const uint32_t row = __shfl_sync(kFullMask, owned.chunk.column, read_owned(owned, i));
        const uint32_t bytes = static_cast<uint32_t>(args().layout.heads) * static_cast<uint32_t>(sizeof(float));
        factors.key_logit[i] = __ldca(reinterpret_cast<const float*>(key_logits_ + wide_product(row, bytes)));
      }
    }
  }
  // Of the lane's head and the first column. Backward, the compiler may work it out anew: sm_100 has no register left.
  static __device__ const char* first_key_logit(const Frame& frame) {
    const float* const logit = frame.args.key_logits + frame.work.read(frame.args.layout);
    const auto* const address = reinterpret_cast<const char*>(logit);
    return Config::kForward ? as_computed(address) : address;
  }
  // From the lanes' parts of dots, without what the edges add.
  template <class Owned, class Factors>
  __device__ void sum_up_logits(const Owned& owned, Factors& factors) const {
    frame_.sum_up(owned, factors.key);
    if constexpr (Config::kSplits) {
      const float absolute = args().logit.absolute;
#pragma unroll
      for (int i = 0; i < Owned::kOwned; ++i) {
        factors.key[i] = fmaf(absolute, factors.key[i], factors.key_logit[i]);
      }
    }
  }

  // ---- Dropout.

  __device__ int in_warp_mask() const { return (1 << args().layout.log2_heads) - 1; }
  // m_e of an edge that the lane owns.
  template <class Batch>
  __device__ float multiplier(const Batch& batch, int i) const {
    if (!args().dropout.is_on()) return 1.f;
    const uint32_t first_of_warp = threadIdx.x & ~(kWarpSize - 1u);
    const uint32_t dropped = dropped_[first_of_warp + read_owned(batch, i)];
    return (dropped >> (frame_.work.head & in_warp_mask()) & 1) != 0 ? 0.f : args().dropout.scale;
  }

  // ---- Dots in the workspace, with tiles. One of the lanes that own an edge writes its dots, the same in every tile;
  // after the last tile, in the backward, its factors.

  template <int kDots>
  __device__ float* dots_at(const PairChunk& chunk, int place) const {
    const uint64_t edge = static_cast<uint64_t>(chunk.begin) + place;
    return args().dots + (edge * args().layout.heads + frame_.work.read(args().layout)) * kDots;
  }
  __device__ bool is_first_tile() const { return tile_ == 0; }
  __device__ bool is_last_tile() const { return tile_ + 1 == args().layout.tiles; }

  const Frame frame_;
  uint32_t* const
      dropped_;  // of the block, by the edge in the lane's place of a chunk: a bit for each head of the warp
  const char* const key_logits_;
  int tile_;
};

template <class Config>
class ForwardWeights : public PairWeights<Config> {
  using Base = PairWeights<Config>;
  using Base::args;
  using Base::counts;
  using Base::frame_;
  using Base::multiplier;
  using Base::read_owned;
  using typename Base::Edges;
  using typename Base::Frame;
  using typename Base::T;

 public:
  using Base::factor_sum;
  using Base::maximum;
  bool rose;  // the maximum of any lane, with the last batch
  // What a lane rarely needs, in shared memory, beside that of its neighbours.
  struct Shared {
    uint32_t dropped[Config::kThreads];
  };
  __device__ ForwardWeights(const Frame& frame, Shared& shared) : Base(frame, shared.dropped) {}

  __device__ void start_row(const Piece&) { maximum = kLowestLogit; }
  template <class Owned, class Factors>
  __device__ void load(const Owned& owned, Factors& factors) const {
    Base::load_key_logits(owned, factors);
  }

  // From a lane's parts of dots to the factors of all edges. Returns what the sums so far are multiplied by.
  template <class Owned, class Factors>
  __device__ float weigh(const Owned& owned, const Edges& edges, Factors& factors) {
    Base::sum_up_logits(owned, factors);
    edges.add_to_logits(owned, factors);
    const float rescale = raise_maximum(owned, factors);
    find_factors(owned, factors);
    frame_.hand_out(owned, factors.value);
    return rescale;
  }

  // With tiles, in two walks.
  template <class Owned, class Factors>
  __device__ void keep_dots(const Owned& owned, Factors& factors) {
    frame_.sum_up(owned, factors.key);
    const bool writes = frame_.writes_owned(owned);
#pragma unroll
    for (int i = 0; i < Owned::kOwned; ++i) {
      const int place = frame_.owned_place(owned, i);
      if (!writes || place >= owned.chunk.count) continue;
      float* const dot = Base::template dots_at<1>(owned.chunk, place);
      if (!Base::is_first_tile()) factors.key[i] += dot[0];
      if (Base::is_last_tile()) maximum = fmaxf(maximum, factors.key[i]);
      dot[0] = factors.key[i];
    }
  }
  __device__ void end_dots() { maximum = frame_.max_over_edges(maximum); }
  template <class Owned, class Factors>
  __device__ void weigh_kept(const Owned& owned, Factors& factors) {
#pragma unroll
    for (int i = 0; i < Owned::kOwned; ++i) {
      factors.key[i] = Base::template dots_at<1>(owned.chunk, read_owned(owned, i))[0];
    }
    find_factors(owned, factors);
    frame_.hand_out(owned, factors.value);
  }

 private:
  template <class Owned, class Factors>
  __device__ void find_factors(const Owned& owned, Factors& factors) {
#pragma unroll
    for (int i = 0; i < Owned::kOwned; ++i) {
      const bool keep = owned.has(frame_.owned_place(owned, i));
      const float weight = keep ? exp_of_difference<T>(factors.key[i] - maximum) : 0.f;
      factor_sum += counts(owned) ? weight : 0.f;
      factors.value[i] = args().dropout.is_on() ? weight * multiplier(owned, i) : weight;
    }
  }
  template <class Owned, class Factors>
  __device__ float raise_maximum(const Owned& owned, const Factors& factors) {
    float raised = kLowestLogit;
#pragma unroll
    for (int i = 0; i < Owned::kOwned; ++i) {
      const bool keep = owned.has(frame_.owned_place(owned, i));
      if (Owned::kFull && Owned::kOwned == 1) {
        raised = factors.key[i];
      } else {
        raised = fmaxf(raised, keep ? factors.key[i] : kLowestLogit);
      }
    }
    if constexpr (Config::kKeepsProducts) {
      rose = __any_sync(kFullMask, raised > maximum);
      if (!rose) return 1.f;  // as of most batches
    }
    raised = fmaxf(raised, maximum);
    if constexpr (Owned::kOwned < Owned::kEdges) {
#pragma unroll
      for (int step = 0; step < log2_ceil(Owned::kEdges); ++step) {
        raised = fmaxf(raised, __shfl_xor_sync(kFullMask, raised, 1 << step));
      }
    }
    const float rescale = exp_of_difference<T>(maximum - raised);
    factor_sum *= rescale;
    maximum = raised;
    return rescale;
  }
};

}  // namespace halfgnn::cuda
