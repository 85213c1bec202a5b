// Forward on tensor cores: the factors of edges are their weights, by softmax with a running maximum
// (../../shared/attention.cuh).
#pragma once

#include "walk.cuh"

namespace halfgnn::cuda {

template <class Config>
class TensorForward : public TensorWalk<Config, TensorForward<Config>> {
  using Base = TensorWalk<Config, TensorForward<Config>>;
  friend Base;
  using Base::args_, Base::head_, Base::lane_, Base::by_row_, Base::by_pair_, Base::dropout_scale;
  using Base::edges_, Base::own_key_, Base::has_total_, Base::sum_block_;
  using typename Base::Edges, typename Base::Epilogue, typename Base::Factors, typename Base::OwnRow,
      typename Base::Sums, typename Base::T;
  static constexpr float kUnit = 1 / kTensorFactor;

 public:
  struct Shared : Base::Shared {
    typename Sums::Totals values;
    float total_maximum[kTensorThreads], total_weight[kTensorThreads];
  };
  __device__ TensorForward(const PairArgs& args, int head, Shared& shared)
      : Base(args, head, shared),
        values_(shared.values),
        total_maximum_(shared.total_maximum[threadIdx.x]),
        total_weight_(shared.total_weight[threadIdx.x]) {}

 private:
  __device__ void start_row(const Piece&) {
    maximum_ = kLowestLogit;
    weight_sum_ = 0.f;
    values_.clear();
  }

  template <class Batch>
  __device__ void add_batch(const Batch& batch, uint32_t column) {
    uint32_t by_row[2], by_pair[4];
    batch.columns_by_row(column, lane_, by_row);
    batch.columns_by_pair(column, lane_, by_pair);
    auto keys = Base::rows_for_dots(batch, by_row_.key, by_row);
    auto values = Base::rows_for_sums(batch, by_pair_.value, by_pair);
    const auto held = edges_.load(batch);
    const TensorFactors<T> factors(batch, weigh(batch, Base::dots_of(batch, own_key_, keys), held).value);
    values.for_each([&](const auto& rows, int block) { values_.add(rows, factors, lane_, block); });
    edges_.add_sums(batch, held, factors);
  }

  // Of edges group and group + 8.
  template <class Batch, class Held>
  __device__ Factors weigh(const Batch& batch, const typename OwnRow::Dots& dots, const Held& held) {
    float logits[2], raised = maximum_;
    Base::find_logits(batch, dots, held, logits);
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) {
      raised = fmaxf(raised, batch.has(lane_.group + 8 * i) ? logits[i] : kLowestLogit);
    }
    if (__any_sync(kFullMask, raised > maximum_)) raise_maximum(raised);
    Factors factors;
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) {
      const float weight = batch.has(lane_.group + 8 * i) ? exp_of_difference<T>(logits[i] - maximum_) : 0.f;
      weight_sum_ += weight;
      factors.value[i] = Base::is_dropped(batch, i) ? 0.f : weight * kTensorFactor;
    }
    return factors;
  }
  __device__ void raise_maximum(float raised) {
    raised = max_over_groups(raised);
    const float rescale = exp_of_difference<T>(maximum_ - raised);
    weight_sum_ *= rescale;
    values_.multiply(rescale);
    edges_.multiply_sums(rescale);
    maximum_ = raised;
  }

  // Of the row. rescale: of the total.
  __device__ float sum_of_weights(float rescale) const {
    float sum = has_total_ ? fmaf(total_weight_, rescale, weight_sum_) : weight_sum_;
#pragma unroll
    for (int bit = 4; bit < kWarpSize; bit *= 2) sum += __shfl_xor_sync(kFullMask, sum, bit);
    return sum;
  }
  __device__ float rescale_of_total() const {
    return has_total_ ? exp_of_difference<T>(total_maximum_ - maximum_) : 1.f;
  }
  __device__ void end_run() {
    const float rescale = rescale_of_total();
    cuda::end_run(has_total_, rescale, total_weight_, weight_sum_);
    values_.end_run(has_total_, rescale, kUnit);
    edges_.end_run(has_total_, rescale, kUnit);
    total_maximum_ = maximum_;
  }

  __device__ bool store(const Piece& piece) {
    const Epilogue epilogue(args_);
    float values[kTensorChunk];
    typename Edges::Values of_edges = {};
    const float rescale = rescale_of_total();
    values_.finish(has_total_, rescale, kUnit, values);
    edges_.finish(has_total_, rescale, kUnit, of_edges);
    if (!Base::accepts(values) || !Base::accepts(of_edges)) return false;
    const float sum = sum_of_weights(rescale);
    const float factor = dropout_scale() * epilogue.result_factor(piece, sum);
#pragma unroll
    for (int i = 0; i < kTensorChunk; ++i) values[i] *= factor;
    if (Base::writes()) epilogue.store_result(piece, Base::own_element(), values);
    edges_.store_sums(piece, of_edges, factor);
    if (lane_.lane == 0) epilogue.store_statistics(piece, head_, maximum_, sum);
    return sum_block_ == kAllBlocks;
  }

  // Of the row.
  Sums values_;
  float maximum_, weight_sum_;
  float &total_maximum_, &total_weight_;
};

}  // namespace halfgnn::cuda
