// The gradients of destinations on tensor cores: the factors of edges are made of their weight and the derivative by
// it.
#pragma once

#include "unit.cuh"
#include "walk.cuh"

namespace halfgnn::cuda {

template <class Config>
class TensorBackward : public TensorWalk<Config, TensorBackward<Config>> {
  using Base = TensorWalk<Config, TensorBackward<Config>>;
  friend Base;
  using Base::args_, Base::lane_, Base::by_row_, Base::by_pair_, Base::dropout_scale, Base::head_of;
  using Base::chunks, Base::statistic_at, Base::edges_, Base::own_key_, Base::has_total_, Base::sum_block_;
  using typename Base::Edges, typename Base::Epilogue, typename Base::Factors, typename Base::OwnRow,
      typename Base::Sums, typename Base::T;

 public:
  struct Shared : Base::Shared {
    typename Sums::Totals keys;
  };
  __device__ TensorBackward(const PairArgs& args, int head, Shared& shared)
      : Base(args, head, shared), keys_(shared.keys) {}

 private:
  // lse, and the dot of the result and its gradient.
  __device__ void start_row(const Piece& piece) {
    own_value_.load(head_of(args_.own_value, piece.row), chunks(), lane_);
    keys_.clear();
    unit_.clear();
    record_ = {__ldg(args_.lse + statistic_at(piece.row)), 0.f};
    if (Sums::writes(lane_, chunks())) {
      const int64_t at = static_cast<int64_t>(piece.row) * args_.row_elements + Base::own_element();
      float out[kTensorChunk], grad[kTensorChunk];
      load_precise<T>(args_.out, at, out);
      Fragment<T, kTensorChunk>::load(static_cast<const T*>(args_.own_value) + at).widen(grad);
#pragma unroll
      for (int i = 0; i < kTensorChunk; ++i) record_.delta = fmaf(grad[i], out[i], record_.delta);
    }
#pragma unroll
    for (int bit = 1; bit < kWarpSize; bit *= 2) record_.delta += __shfl_xor_sync(kFullMask, record_.delta, bit);
  }

  // ---- Edges.

  template <class Batch>
  __device__ void add_batch(const Batch& batch, uint32_t column) {
    uint32_t by_row[2], by_pair[4];
    batch.columns_by_row(column, lane_, by_row);
    const auto held = edges_.load(batch);
    const Factors of_keys = differentiate(batch, by_row, held);
    batch.columns_by_pair(column, lane_, by_pair);
    // The same rows again, from the L1 cache.
    auto keys = Base::rows_for_sums(batch, by_pair_.key, by_pair);
    const TensorFactors<T> factors(batch, of_keys.value);
    keys.for_each([&](const auto& rows, int block) { keys_.add(rows, factors, lane_, block); });
    edges_.add_sums(batch, held, factors);
  }

  // Dots, and from them the factors of edges group and group + 8.
  template <class Batch, class Held>
  __device__ Factors differentiate(const Batch& batch, const uint32_t (&by_row)[2], const Held& held) {
    auto keys = Base::rows_for_dots(batch, by_row_.key, by_row);
    auto values = Base::rows_for_dots(batch, by_row_.value, by_row);
    const auto dots_of_keys = Base::dots_of(batch, own_key_, keys);
    const auto dots_of_values = Base::dots_of(batch, own_value_, values);
    float logits[2], derivatives[2];
    Base::find_logits(batch, dots_of_keys, held, logits);
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) derivatives[i] = lane_.of_own_group(dots_of_values.of_edge(i));
    edges_.add_to_values(batch, held, derivatives);
    Factors of_keys;
    float weights[2], gradients[2];  // of records
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) {
      const float weight = exp_of_difference<T>(logits[i] - record_.lse);
      const float dropout_factor = Base::is_dropped(batch, i) ? 0.f : dropout_scale();
      const float gradient = weight * fmaf(dropout_factor, derivatives[i], -record_.delta);
      weights[i] = weight * dropout_factor;
      gradients[i] = gradient;
      of_keys.value[i] = batch.has(lane_.group + 8 * i) ? gradient : 0.f;
    }
    edges_.store_records(batch, weights, gradients);
    rescale_keys(unit_.fit(of_keys.value));
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) of_keys.value[i] = unit_.scaled(of_keys.value[i]);
    return of_keys;
  }
  __device__ void rescale_keys(float factor) {
    if (factor == 1.f) return;
    keys_.multiply(factor);
    edges_.multiply_sums(factor);
  }

  // ---- Runs, and the end of a row.

  __device__ void end_run() {
    keys_.end_run(has_total_, 1.f, unit_.unit());
    edges_.end_run(has_total_, 1.f, unit_.unit());
  }

  __device__ bool store(const Piece& piece) {
    float keys[kTensorChunk];
    typename Edges::Values of_edges = {};
    keys_.finish(has_total_, 1.f, unit_.unit(), keys);
    edges_.finish(has_total_, 1.f, unit_.unit(), of_edges);
    if (!Base::accepts(keys) || !Base::accepts(of_edges)) return false;
    const float factor = args_.logit.linear;
#pragma unroll
    for (int i = 0; i < kTensorChunk; ++i) keys[i] *= factor;
    if (Base::writes()) Epilogue(args_).store_key_gradient(piece, Base::own_element(), keys);
    edges_.store_sums(piece, of_edges, factor);
    return sum_block_ == kAllBlocks;
  }

  // Of the row.
  OwnRow own_value_;
  DestinationRecord record_;
  Sums keys_;
  TensorUnit unit_;  // of the factors of keys
};

}  // namespace halfgnn::cuda
