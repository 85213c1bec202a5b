// From the dots of edges to what their rows are multiplied by, the factors, for GATv2 and dot attention.
//
// Forward: softmax with a running maximum (see shared/attention.cuh); each group of lanes has its own until the row
// ends. The factor of values is exp(l_e - maximum) m_e. Backward: with weights a_e = exp(l_e - lse), the factor of
// values is a_e m_e, that of keys the gradient of the logit.
//
// With tiles, dots are summed up in the workspace, over all tiles of a head, before the first row is added.
#pragma once

#include "../../../core/softmax.cuh"
#include "records.cuh"

namespace halfgnn::cuda {

template <class Config>
class PairWeights {
  using T = typename Config::Element;
  using Frame = PairFrame<Config>;
  static constexpr int kUnroll = Config::kUnroll;
  static constexpr bool kForward = Config::kForward;
  template <class Batch>
  using Factors = PairFactors<Batch::kEdges>;

 public:
  // What a lane rarely needs, in shared memory, beside that of its neighbours.
  struct Shared {
    DestinationRecord record[Config::kToDestinations ? Config::kThreads : 1];
    uint32_t dropped[Config::kReadsRecords ? 1 : Config::kThreads];  // by the edge in the lane's place of a chunk: a
                                                                     // bit for each head of the warp
  };

  __device__ PairWeights(const Frame& frame, Shared& shared) : frame_(frame), shared_(shared) {}

  // To destinations, the record of the row is left to the pass to sources. Of the pieces of a row, which all have the
  // same, the first one writes it.
  __device__ void start_row(const Piece& piece) {
    maximum = kLowestLogit;
    if constexpr (Config::kToDestinations) {
      shared_.record[threadIdx.x] = {__ldg(args().lse + frame_.statistic_at(piece.row)), delta_of(piece.row)};
      const bool is_first = piece.is_whole_row || args().units.rows.indptr.offset(piece.row) == piece.begin;
      if (frame_.writes_statistics() && is_first) {
        args().records[frame_.statistic_at(piece.row)] = shared_.record[threadIdx.x];
      }
    }
  }
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
    shared_.dropped[threadIdx.x] = dropped;
    __syncwarp();
  }

  // The records of the edges that a lane owns: of the destinations, if those are the columns.
  template <class Batch>
  __device__ void load_records(const Batch& batch, Factors<Batch>& factors) const {
#pragma unroll
    for (int i = 0; i < Batch::kOwned; ++i) {
      const int place = read_owned(batch, i);
      factors.record[i] = load_record(__shfl_sync(kFullMask, batch.chunk.column, place));
    }
  }

  // What edges that a lane owns add to their logits.
  template <class Batch>
  __device__ void load_biases(const Batch& batch, Factors<Batch>& factors) const {
    const PairEdgeArgs& edge = args().edge;
#pragma unroll
    for (int i = 0; i < Batch::kOwned; ++i) {
      const uint64_t at = entry_of(batch, frame_.owned_place(batch, i));
      factors.bias[i] = 0.f;
      if (Config::kHasOtherTerms && edge.bias == nullptr) continue;
      factors.bias[i] = edge.bias_is_float ? __ldg(static_cast<const float*>(edge.bias) + at)
                                           : Fragment<T, 1>::load(static_cast<const T*>(edge.bias) + at).value();
    }
  }
  // Their gradients: those of logits, of the edges that a lane owns.
  template <class Batch>
  __device__ void store_bias_gradients(const Batch& batch, const Factors<Batch>& factors) const {
    const PairEdgeArgs& edge = args().edge;
    if (edge.grad_bias == nullptr) return;
    const bool writes = frame_.writes_owned(batch);
#pragma unroll
    for (int i = 0; i < Batch::kOwned; ++i) {
      const int place = frame_.owned_place(batch, i);
      const uint64_t at = entry_of(batch, place);
      if (!writes || !batch.has(place)) continue;
      store_result<T>(edge.grad_bias, edge.bias_is_float, at, factors.owned_key[i]);
    }
  }

  // From records of edges instead of dots: the factors of all edges, which are the same in all lanes of a head.
  template <class Batch>
  __device__ void take(const Batch& batch, Factors<Batch>& factors) {
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) {
      const bool keep = batch.has(frame_.place(batch, u));
      factors.key[u] = keep ? factors.key[u] : 0.f;
      factors.value[u] = keep ? factors.value[u] : 0.f;
      factor_sum += factors.key[u];
    }
  }
  // After the last edge: the sum over all edges of the row.
  __device__ float total_factor() const {
    return Config::kReadsRecords ? frame_.sum_over_groups(factor_sum) : frame_.sum_over_owners(factor_sum);
  }

  // From a lane's parts of dots to the factors of all edges. Returns what the sums so far are multiplied by.
  template <PairStep kStep, class Batch>
  __device__ float weigh(const Batch& batch, Factors<Batch>& factors) {
    if constexpr (kStep == PairStep::kSums) {
      read_dots(batch, factors);
    } else {
      frame_.sum_up(batch, factors.key);
      if constexpr (!kForward) frame_.sum_up(batch, factors.value);
      if constexpr (kStep == PairStep::kDots) {
        keep_dots(batch, factors);
        return 1.f;
      }
    }
    if constexpr (Config::kHasTerms) {
#pragma unroll
      for (int i = 0; i < Batch::kOwned; ++i) factors.key[i] += factors.bias[i];
    }
    float rescale = 1.f;
    if constexpr (kForward && kStep == PairStep::kAll) rescale = raise_maximum(batch, factors);
    find_factors<kStep>(batch, factors);
    if constexpr (Config::kWritesRecords) {
#pragma unroll
      for (int i = 0; i < Batch::kOwned; ++i) factors.owned_key[i] = factors.key[i];
    }
    if constexpr (Config::kSumsValues) frame_.hand_out(batch, factors.value);
    if constexpr (Config::kSumsKeys) frame_.hand_out(batch, factors.key);
    return rescale;
  }

  float maximum;     // forward: sums are relative to it
  float factor_sum;  // over owned edges: of weights; backward, of the factors of keys; of a group's, with records

 private:
  __device__ const PairArgs& args() const { return frame_.args; }
  // Where in the chunk edge i is of those that the lane owns; of one past the last, the last.
  template <class Batch>
  __device__ int read_owned(const Batch& batch, int i) const {
    return batch.read(frame_.owned_place(batch, i));
  }
  // Where the lane's head is in the data of the edge at `place`; of a place past the last, of the last. The whole warp
  // takes part.
  template <class Batch>
  __device__ uint64_t entry_of(const Batch& batch, int place) const {
    const uint32_t edge = __shfl_sync(kFullMask, batch.chunk.edge, batch.read(place));
    return static_cast<uint64_t>(edge) * args().layout.heads + frame_.work.read(args().layout);
  }
  // The dot of a row's gradient and its result. A loop even where it runs once: few registers, for the moment.
  __device__ float delta_of(uint32_t row) const {
    constexpr int kVector = Config::kVector;
    const HeadLayout& layout = args().layout;
    float part = 0.f;
#pragma unroll 1
    for (int vector = frame_.work.own; vector < layout.vectors; vector += 1 << layout.log2_lanes) {
      const int64_t at = (frame_.statistic_at(row) * layout.vectors + vector) * kVector;
      float grad[kVector], out[kVector];
      Config::Row::load(static_cast<const T*>(args().own_value) + at).widen(grad);
      load_precise<T>(args().out, at, out);
#pragma unroll
      for (int i = 0; i < kVector; ++i) part = fmaf(grad[i], out[i], part);
    }
    return frame_.sum_over_lanes(part);
  }
  __device__ DestinationRecord load_record(uint32_t row) const {
    const float2 record = __ldg(reinterpret_cast<const float2*>(args().records + frame_.statistic_at(row)));
    return {record.x, record.y};
  }

  // ---- Dropout.

  __device__ int in_warp_mask() const { return (1 << args().layout.log2_heads) - 1; }
  // m_e of an edge that the lane owns.
  template <class Batch>
  __device__ float multiplier(const Batch& batch, int i) const {
    if (!args().dropout.is_on()) return 1.f;
    const uint32_t first_of_warp = threadIdx.x & ~(kWarpSize - 1u);
    const uint32_t dropped = shared_.dropped[first_of_warp + read_owned(batch, i)];
    return (dropped >> (frame_.work.head & in_warp_mask()) & 1) != 0 ? 0.f : args().dropout.scale;
  }

  // ---- Factors of the edges that a lane owns.

  template <PairStep kStep, class Batch>
  __device__ void find_factors(const Batch& batch, Factors<Batch>& factors) {
    const bool counts = Batch::kEdges == kUnroll || frame_.owner() == 0;  // of a single edge all lanes have the dot
#pragma unroll
    for (int i = 0; i < Batch::kOwned; ++i) {
      const bool keep = batch.has(frame_.owned_place(batch, i));
      if constexpr (kForward) {
        const float weight = keep ? exp_of_difference<T>(factors.key[i] - maximum) : 0.f;
        factor_sum += counts ? weight : 0.f;
        factors.value[i] = weight * multiplier(batch, i);
      } else {
        if constexpr (kStep == PairStep::kAll) find_gradient(i, multiplier(batch, i), factors);
        factors.key[i] = keep ? factors.key[i] : 0.f;
        factors.value[i] = keep ? factors.value[i] : 0.f;
        factor_sum += counts ? factors.key[i] : 0.f;
      }
    }
  }

  template <class Batch>
  __device__ float raise_maximum(const Batch& batch, const Factors<Batch>& factors) {
    float raised = maximum;
#pragma unroll
    for (int i = 0; i < Batch::kOwned; ++i) {
      const bool keep = batch.has(frame_.owned_place(batch, i));
      raised = fmaxf(raised, keep ? factors.key[i] : kLowestLogit);
    }
    if constexpr (Batch::kOwned < Batch::kEdges) {
#pragma unroll
      for (int step = 0; step < log2_ceil(Batch::kEdges); ++step) {
        raised = fmaxf(raised, __shfl_xor_sync(kFullMask, raised, 1 << step));
      }
    }
    const float rescale = exp_of_difference<T>(maximum - raised);
    factor_sum *= rescale;
    maximum = raised;
    return rescale;
  }

  // Turns the dots of an edge into its factors.
  template <int kEdges>
  __device__ void find_gradient(int i, float multiplier, PairFactors<kEdges>& factors) const {
    const DestinationRecord record =
        Config::kPass == PairPass::kSources ? factors.record[i] : shared_.record[own_record()];
    const float weight = exp_of_difference<T>(factors.key[i] - record.lse);
    factors.key[i] = weight * fmaf(multiplier, factors.value[i], -record.delta);
    factors.value[i] = weight * multiplier;
  }
  static __device__ uint32_t own_record() { return Config::kToDestinations ? threadIdx.x : 0; }

  // ---- Dots in the workspace, with tiles. One of the lanes that own an edge writes its dots, the same in every tile;
  // after the last tile, in the backward, its factors.

  __device__ float* dots_at(const PairChunk& chunk, int place) const {
    constexpr int kDots = kForward ? 1 : 2;
    const uint64_t edge = static_cast<uint64_t>(chunk.begin) + place;
    return args().dots + (edge * args().layout.heads + frame_.work.read(args().layout)) * kDots;
  }
  template <class Batch>
  __device__ void keep_dots(const Batch& batch, Factors<Batch>& factors) {
    const bool is_first = tile_ == 0, is_last = tile_ + 1 == args().layout.tiles;
    const bool writes = frame_.writes_owned(batch);
#pragma unroll
    for (int i = 0; i < Batch::kOwned; ++i) {
      const int place = frame_.owned_place(batch, i);
      const float times = !kForward && is_last ? multiplier(batch, i) : 1.f;
      if (!writes || place >= batch.chunk.count) continue;
      float* dots = dots_at(batch.chunk, place);
      if (!is_first) {
        factors.key[i] += dots[0];
        if constexpr (!kForward) factors.value[i] += dots[1];
      }
      if (is_last) {
        if constexpr (kForward) {
          maximum = fmaxf(maximum, factors.key[i]);
        } else {
          find_gradient(i, times, factors);
        }
      }
      dots[0] = factors.key[i];
      if constexpr (!kForward) dots[1] = factors.value[i];
    }
  }
  template <class Batch>
  __device__ void read_dots(const Batch& batch, Factors<Batch>& factors) const {
#pragma unroll
    for (int i = 0; i < Batch::kOwned; ++i) {
      const float* dots = dots_at(batch.chunk, read_owned(batch, i));
      factors.key[i] = dots[0];
      if constexpr (!kForward) factors.value[i] = dots[1];
    }
  }

  const Frame frame_;
  Shared& shared_;
  int tile_;
};

}  // namespace halfgnn::cuda
