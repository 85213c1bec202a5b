// A pass of the backward on tensor cores: the factors of edges are made of their weight and the derivative by it.
#pragma once

#include "products.cuh"
#include "unit.cuh"
#include "walk.cuh"

namespace halfgnn::cuda {

template <class Config>
class TensorBackward : public TensorWalk<Config, TensorBackward<Config>> {
  using Base = TensorWalk<Config, TensorBackward<Config>>;
  friend Base;
  using Base::args_, Base::head_, Base::lane_, Base::by_row_, Base::by_pair_, Base::dropout_scale, Base::head_of;
  using Base::chunks, Base::statistic_at;
  using Base::edges_, Base::score_, Base::weight_sum_, Base::total_weight_, Base::has_total_, Base::sum_block_;
  using typename Base::Edges, typename Base::Epilogue, typename Base::Factors, typename Base::Score,
      typename Base::Sums, typename Base::T;
  static constexpr bool kIsGatv2 = Config::kScore == PairScore::kLeaky;
  static constexpr bool kSumsValues = Config::kSumsValues;
  static constexpr float kValueUnit = 1 / kTensorFactor;
  using OwnRow = TensorOwnRow<T, Config::kBlocks>;
  using Products = std::conditional_t<Config::kWritesProducts, TensorProducts<Config::kBlocks>, NoTensorProducts>;

 public:
  struct Shared : Base::Shared {
    typename Sums::Totals values, keys;
    typename Products::Shared products;
  };
  __device__ TensorBackward(const PairArgs& args, int head, Shared& shared)
      : Base(args, head, shared), values_(shared.values), keys_(shared.keys), products_(shared.products) {}

  // The whole block takes part, once all rows are done.
  __device__ void write_products(uint32_t block) const {
    products_.write(args_.products + static_cast<int64_t>(block) * args_.row_elements + Base::head_elements(),
                    chunks());
  }

 private:
  __device__ void start_row(const Piece& piece) {
    own_value_.load(head_of(args_.own_value, piece.row), chunks(), lane_);
    if constexpr (kSumsValues) values_.clear();
    keys_.clear();
    unit_.clear();
    if constexpr (Config::kToDestinations) start_record(piece);
  }
  // lse, and the dot of the result and its gradient. The first piece of a row leaves them for the pass to sources,
  // unless that has records of edges.
  __device__ void start_record(const Piece& piece) {
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
    const bool is_first = piece.is_whole_row || args_.units.rows.indptr.offset(piece.row) == piece.begin;
    if (!Config::Terms::kHasTerms && is_first && lane_.lane == 0) args_.records[statistic_at(piece.row)] = record_;
  }

  // ---- Edges.

  template <class Batch>
  __device__ void add_batch(const Batch& batch, uint32_t column) {
    uint32_t by_row[2], by_pair[4];
    batch.columns_by_row(column, lane_, by_row);
    const auto held = edges_.load(batch);
    Factors of_keys, of_values;
    differentiate(batch, by_row, held, of_keys, of_values);
    batch.columns_by_pair(column, lane_, by_pair);
    // The same rows again, from the L1 cache.
    if constexpr (kSumsValues) {
      auto values = Base::rows_for_sums(batch, by_pair_.value, by_pair);
      const TensorFactors<T> factors(batch, of_values.value);
      values.for_each([&](const auto& rows, int block) { values_.add(rows, factors, lane_, block); });
    }
    auto keys = Base::rows_for_sums(batch, by_pair_.key, by_pair);
    const TensorFactors<T> factors(batch, of_keys.value);
    keys.for_each(
        [&](const auto& rows, int block) { keys_.add(score_.terms(batch, rows, block), factors, lane_, block); });
    edges_.add_sums(batch, held, factors);
  }

  // Dots, and factors from them, of edges group and group + 8.
  template <class Batch, class Held>
  __device__ void differentiate(const Batch& batch, const uint32_t (&by_row)[2], const Held& held, Factors& of_keys,
                                Factors& of_values) {
    auto keys = Base::rows_for_dots(batch, by_row_.key, by_row);
    auto values = Config::kOneRow ? keys : Base::rows_for_dots(batch, by_row_.value, by_row);
    DestinationRecord records[2];
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) {
      records[i] = Config::kToDestinations ? record_ : Base::load_record(by_row[i]);
    }
    const auto dots_of_keys = Base::dots_of(batch, score_, keys);
    const auto dots_of_values = Base::dots_of(batch, own_value_, values);
    float logits[2], derivatives[2];
    Base::find_logits(batch, dots_of_keys, held, logits);
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) derivatives[i] = lane_.of_own_group(dots_of_values.of_edge(i));
    edges_.add_to_values(batch, held, derivatives);
    float weights[2], gradients[2];  // of records
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) {
      const float weight = exp_of_difference<T>(logits[i] - records[i].lse);
      const float dropout_factor = Base::is_dropped(batch, i) ? 0.f : dropout_scale();
      const float gradient = weight * fmaf(dropout_factor, derivatives[i], -records[i].delta);
      const bool keep = batch.has(lane_.group + 8 * i);
      weights[i] = weight * dropout_factor;
      gradients[i] = gradient;
      of_keys.value[i] = keep ? gradient : 0.f;
      if (kIsGatv2) weight_sum_ += of_keys.value[i];
      of_values.value[i] = keep && !Base::is_dropped(batch, i) ? weight * kTensorFactor : 0.f;
    }
    edges_.store_records(batch, weights, gradients);
    rescale_keys(unit_.fit(of_keys.value));
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) of_keys.value[i] = unit_.scaled(of_keys.value[i]);
  }
  __device__ void rescale_keys(float factor) {
    if (factor == 1.f) return;
    keys_.multiply(factor);
    edges_.multiply_sums(factor);
  }

  // ---- Runs, and the end of a row.

  __device__ void end_run() {
    if constexpr (kSumsValues) values_.end_run(has_total_, 1.f, kValueUnit);
    keys_.end_run(has_total_, 1.f, unit_.unit());
    edges_.end_run(has_total_, 1.f, unit_.unit());
    if (kIsGatv2) cuda::end_run(has_total_, 1.f, total_weight_, weight_sum_);
  }

  __device__ bool store(const Piece& piece) {
    float values[kTensorChunk], keys[kTensorChunk];
    typename Edges::Values of_edges = {};
    if constexpr (kSumsValues) {
      values_.finish(has_total_, 1.f, kValueUnit, values);
      if (!Base::accepts(values)) return false;
    }
    keys_.finish(has_total_, 1.f, unit_.unit(), keys);
    edges_.finish(has_total_, 1.f, unit_.unit(), of_edges);
    if (!Base::accepts(keys) || !Base::accepts(of_edges)) return false;
    const float factor_sum = kIsGatv2 ? Base::sum_of_weights(1.f) : 0.f;
    if (Base::writes()) store_gradients(piece, factor_sum, values, keys);
    edges_.store_sums(piece, of_edges, args_.logit.linear);
    return sum_block_ == kAllBlocks;
  }
  // factor_sum: of GATv2.
  __device__ void store_gradients(const Piece& piece, float factor_sum, float (&values)[kTensorChunk],
                                  float (&keys)[kTensorChunk]) {
    const Epilogue epilogue(args_);
    const int at = Sums::own_chunk(lane_) * kMaxAccessBytes;
    float product[kTensorChunk];
    Score::finish(args_, head_of(args_.own_key, piece.row) + at, head_of(args_.logit.attn) + at, factor_sum, keys,
                  product);
    products_.add(product);
    if constexpr (kSumsValues) {
#pragma unroll
      for (int i = 0; i < kTensorChunk; ++i) {
        if (kIsGatv2) keys[i] = fmaf(dropout_scale(), values[i], keys[i]);
        values[i] *= dropout_scale();
      }
      if constexpr (!kIsGatv2) epilogue.store_value_gradient(piece, Base::own_element(), values);
    }
    epilogue.store_key_gradient(piece, Base::own_element(), keys);
  }

  // Of the row.
  OwnRow own_value_;
  DestinationRecord record_;
  Sums values_, keys_;
  TensorUnit unit_;  // of the factors of keys
  Products products_;
};

}  // namespace halfgnn::cuda
