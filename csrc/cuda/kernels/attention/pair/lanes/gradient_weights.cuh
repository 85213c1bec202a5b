// The factors of a backward of GATv2 and dot attention. With weights a_e = exp(l_e - lse), the factor of values is
// a_e m_e, that of keys the gradient of the logit; or both are read from records of edges.
#pragma once

#include "records.cuh"
#include "weights.cuh"

namespace halfgnn::cuda {

template <class Config>
class GradientWeights : public PairWeights<Config> {
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
  // As of ForwardWeights. record: of the row, if rows are destinations.
  struct Shared {
    DestinationRecord record[Config::kToDestinations ? Config::kThreads : 1];
    uint32_t dropped[Config::kThreads];
  };
  __device__ GradientWeights(const Frame& frame, Shared& shared) : Base(frame, shared.dropped), shared_(shared) {}

  // To destinations, the record of the row is left to the pass to sources. Of the pieces of a row, which all have the
  // same, the first one writes it.
  __device__ void start_row(const Piece& piece) {
    if constexpr (Config::kToDestinations) {
      shared_.record[threadIdx.x] = {__ldg(args().lse + frame_.statistic_at(piece.row)), delta_of(piece.row)};
      const bool is_first = piece.is_whole_row || args().units.rows.indptr.offset(piece.row) == piece.begin;
      if (frame_.writes_statistics() && is_first) {
        args().records[frame_.statistic_at(piece.row)] = shared_.record[threadIdx.x];
      }
    }
  }

  // To sources: the records of the destinations, which are the columns, of the edges that a lane owns.
  template <class Owned, class Factors>
  __device__ void load(const Owned& owned, Factors& factors) const {
    Base::load_key_logits(owned, factors);
    // Not only when dots are done: the compiler keeps loads that are not read-only before this.
    if constexpr (Config::kSplits) __syncwarp();
    if constexpr (!Config::kToDestinations) {
#pragma unroll
      for (int i = 0; i < Owned::kOwned; ++i) {
        const uint32_t row = __shfl_sync(kFullMask, owned.chunk.column, read_owned(owned, i));
        const float2 record = __ldg(reinterpret_cast<const float2*>(args().records + frame_.statistic_at(row)));
        factors.record[i] = {record.x, record.y};
      }
    }
  }

  // From a lane's parts of dots to the factors of all edges. Returns what the sums so far are multiplied by.
  template <class Owned, class Factors>
  __device__ float weigh(const Owned& owned, const Edges& edges, Factors& factors) {
    Base::sum_up_logits(owned, factors);
    frame_.sum_up(owned, factors.value);
    edges.add_to_logits(owned, factors);
#pragma unroll
    for (int i = 0; i < Owned::kOwned; ++i) {
      const bool keep = owned.has(frame_.owned_place(owned, i));
      find_gradient(i, multiplier(owned, i), factors);
      keep_if(keep, i, counts(owned), factors);
    }
#pragma unroll
    for (int i = 0; i < Owned::kOwned; ++i) factors.owned_key[i] = factors.key[i];
    hand_out(owned, factors);
    return 1.f;
  }

  // With tiles, in two walks.
  template <class Owned, class Factors>
  __device__ void keep_dots(const Owned& owned, Factors& factors) {
    frame_.sum_up(owned, factors.key);
    frame_.sum_up(owned, factors.value);
    const bool writes = frame_.writes_owned(owned);
#pragma unroll
    for (int i = 0; i < Owned::kOwned; ++i) {
      const int place = frame_.owned_place(owned, i);
      const float dropout_factor = Base::is_last_tile() ? multiplier(owned, i) : 1.f;
      if (!writes || place >= owned.chunk.count) continue;
      float* const dots = Base::template dots_at<2>(owned.chunk, place);
      if (!Base::is_first_tile()) {
        factors.key[i] += dots[0];
        factors.value[i] += dots[1];
      }
      if (Base::is_last_tile()) find_gradient(i, dropout_factor, factors);
      dots[0] = factors.key[i];
      dots[1] = factors.value[i];
    }
  }
  __device__ void end_dots() const {}
  template <class Owned, class Factors>
  __device__ void weigh_kept(const Owned& owned, Factors& factors) {
#pragma unroll
    for (int i = 0; i < Owned::kOwned; ++i) {
      const float* const dots = Base::template dots_at<2>(owned.chunk, read_owned(owned, i));
      factors.key[i] = dots[0];
      factors.value[i] = dots[1];
    }
#pragma unroll
    for (int i = 0; i < Owned::kOwned; ++i) {
      keep_if(owned.has(frame_.owned_place(owned, i)), i, counts(owned), factors);
    }
    hand_out(owned, factors);
  }

  // After the last edge: the sum of the factors of keys over all edges of the row.
  __device__ float total_factor() const { return frame_.sum_over_owners(factor_sum); }

 private:
  template <class Factors>
  __device__ void keep_if(bool keep, int i, bool counts, Factors& factors) {
    factors.key[i] = keep ? factors.key[i] : 0.f;
    factors.value[i] = keep ? factors.value[i] : 0.f;
    factor_sum += counts ? factors.key[i] : 0.f;
  }
  template <class Owned, class Factors>
  __device__ void hand_out(const Owned& owned, Factors& factors) const {
    if (Config::kSumsValues) frame_.hand_out(owned, factors.value);
    frame_.hand_out(owned, factors.key);
  }
  // Turns the dots of an edge into its factors.
  template <class Factors>
  __device__ void find_gradient(int i, float dropout_factor, Factors& factors) const {
    const DestinationRecord record = Config::kToDestinations ? shared_.record[own_record()] : factors.record[i];
    const float weight = exp_of_difference<T>(factors.key[i] - record.lse);
    factors.key[i] = weight * fmaf(dropout_factor, factors.value[i], -record.delta);
    factors.value[i] = weight * dropout_factor;
  }
  static __device__ uint32_t own_record() { return Config::kToDestinations ? threadIdx.x : 0; }

  // The dot of a row's gradient and its result. A loop even where it runs once: few registers, for the moment.
  __device__ float delta_of(uint32_t row) const {
    constexpr int kVector = Config::kVector;
    const HeadLayout& layout = args().layout;
    // To the same of the next row, which is in the L2 cache by the time that it is waited for. GATv2's pass that leaves
    // no records would spill on sm_80.
    constexpr bool kPrefetches = Config::kWritesRecords || Config::kScore == PairScore::kDot;
    const uint32_t next = row + 1 < args().units.rows.num_rows ? args().row_elements : 0;
    float part = 0.f;
#pragma unroll 1
    for (int vector = frame_.work.own; vector < layout.vectors; vector += 1 << layout.log2_lanes) {
      const int64_t at = (frame_.statistic_at(row) * layout.vectors + vector) * kVector;
      float grad[kVector], out[kVector];
      Config::Row::load(static_cast<const T*>(args().own_value) + at).widen(grad);
      load_precise<T>(args().out, at, out);
      if constexpr (kPrefetches) {
        prefetch(static_cast<const T*>(args().own_value) + at + next);
        prefetch(static_cast<const T*>(args().out.value) + at + next);
        if (args().out.residual != nullptr) prefetch(static_cast<const T*>(args().out.residual) + at + next);
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) part = fmaf(grad[i], out[i], part);
    }
    return frame_.sum_over_lanes(part);
  }

  Shared& shared_;
};

// From records of edges: no dots are made, and nothing is drawn.
template <class Config>
class RecordedWeights {
  using Frame = PairFrame<Config>;

 public:
  struct Shared {};
  __device__ RecordedWeights(const Frame& frame, Shared&) : frame_(frame) {}

  __device__ void start_row(const Piece&) {}
  __device__ void start_tile(int) { factor_sum = 0.f; }
  __device__ void draw(uint32_t) {}

  // The factors of all edges of a batch are the same in all lanes of a head.
  template <class Batch, class Factors>
  __device__ void take(const Batch& batch, Factors& factors) {
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) {
      const uint32_t keep = batch.mask(frame_.place(batch, u));
      factors.key[u] = __uint_as_float(__float_as_uint(factors.key[u]) & keep);
      factors.value[u] = __uint_as_float(__float_as_uint(factors.value[u]) & keep);
      factor_sum += factors.key[u];
    }
  }
  __device__ float total_factor() const { return frame_.sum_over_groups(factor_sum); }

  static constexpr float maximum = kLowestLogit;
  float factor_sum;  // of a group's edges

 private:
  const Frame frame_;
};

}  // namespace halfgnn::cuda
