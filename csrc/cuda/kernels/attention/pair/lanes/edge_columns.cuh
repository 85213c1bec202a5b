// A row of columns that an edge adds to keys and values, and that all heads share (PairColumnArgs), for dot attention.
// Each lane of a head takes kPairColumns of them. Its part of what they add to an edge's dots is summed up with those
// of the rows, and their weighted sum is one more sum of the lane: of values forward, of keys backward.
#pragma once

#include "../../../core/running_sum.cuh"
#include "edges.cuh"

namespace halfgnn::cuda {

template <class Config>
class LaneEdgeColumns : public LaneBias<Config> {
  using Base = LaneBias<Config>;
  using Base::edge_at;
  using Base::frame_;
  using typename Base::Frame;
  using typename Base::T;
  using Columns = Fragment<T, kPairColumns>;
  static constexpr bool kForward = Config::kForward;

 public:
  struct Shared {
    float totals[kPairColumns][Config::kThreads];
  };
  template <int kEdges>
  struct Held : Base::template Held<kEdges> {
    Columns columns[kEdges];
  };

  __device__ LaneEdgeColumns(const Frame& frame, Shared& shared)
      : Base(frame),
        exists_(static_cast<uint32_t>(frame.work.own) * kPairColumns < frame.args.edge.columns.count),
        first_(exists_ ? static_cast<uint32_t>(frame.work.own) * kPairColumns : 0),
        shared_(shared) {}

  __device__ void start_row(uint32_t row) {
    load_own(args().query, row, query_);
#pragma unroll
    for (int i = 0; i < kPairColumns; ++i) query_[i] *= frame_.args.logit.linear;
    if constexpr (!kForward) load_own(args().grad, row, grad_);
  }

  template <class Batch, class Rows>
  __device__ void load(const Batch& batch, Rows& rows) const {
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) {
      const uint64_t at = static_cast<uint64_t>(edge_at(batch, frame_.place(batch, u))) * args().count + first_;
      rows.edges.columns[u] = Columns::load_streaming(static_cast<const T*>(args().feat) + at);
    }
  }
  template <class Batch, class Rows, class Factors>
  __device__ void add_dots(const Batch& batch, Rows& rows, Factors& dots) const {
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) {
      // Columns of places past the last edge, and of lanes past the last column, become 0.
      rows.edges.columns[u].keep_if(exists_ && batch.has(frame_.place(batch, u)));
    }
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) {
      float columns[kPairColumns];
      rows.edges.columns[u].widen(columns);
#pragma unroll
      for (int i = 0; i < kPairColumns; ++i) {
        dots.key[u] = fmaf(query_[i], columns[i], dots.key[u]);
        if constexpr (!kForward) dots.value[u] = fmaf(grad_[i], columns[i], dots.value[u]);
      }
    }
  }

  template <class Rows, int kEdges>
  __device__ void add_sums(const Rows& rows, const PairFactors<kEdges>& factors, float rescale) {
    float batch[kPairColumns] = {};
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      rows.edges.columns[u].multiply_add_to(kForward ? factors.value[u] : factors.key[u], batch);
    }
#pragma unroll
    for (int i = 0; i < kPairColumns; ++i)
      sums_[i] = kForward ? fmaf(sums_[i], rescale, batch[i]) : sums_[i] + batch[i];
  }
  __device__ void clear_sums() {
#pragma unroll
    for (int i = 0; i < kPairColumns; ++i) sums_[i] = 0.f;
  }
  __device__ void end_run(bool has_total, bool is_last, float rescale) {
#pragma unroll
    for (int i = 0; i < kPairColumns; ++i) {
      cuda::end_run(has_total, rescale, shared_.totals[i][threadIdx.x], sums_[i]);
      if (is_last) sums_[i] = shared_.totals[i][threadIdx.x];
    }
  }
  // Over all edges of the piece, times `factor`.
  __device__ void store_sums(const Piece& piece, float factor) const {
    if (args().sums == nullptr) return;
    float sums[kPairColumns];
#pragma unroll
    for (int i = 0; i < kPairColumns; ++i) sums[i] = sums_[i] * factor;
    frame_.sum_over_groups(sums);
    if (!exists_ || !frame_.writes_rows()) return;
    store_rounded((piece.is_whole_row ? args().sums : args().partial_sums) + own_at(piece.line), sums);
  }

 private:
  __device__ const PairColumnArgs& args() const { return frame_.args.edge.columns; }
  // The lane's columns of a row (rows, heads, columns).
  __device__ int64_t own_at(uint32_t row) const {
    return frame_.statistic_at(row) * static_cast<int64_t>(args().count) + first_;
  }
  __device__ void load_own(const float* rows, uint32_t row, float (&own)[kPairColumns]) const {
    using Own = Fragment<float, kPairColumns>;
    Own columns{};
    if (exists_ && rows != nullptr) columns = Own::load(rows + own_at(row));
    columns.widen(own);
  }

  const bool exists_;
  const uint32_t first_;  // column of the lane
  Shared& shared_;
  // Of the row: what columns meet in logits, with the scale, and in the derivative by a weight; and the run's sums.
  float query_[kPairColumns];
  float grad_[kForward ? 1 : kPairColumns];
  float sums_[kPairColumns];
};

}  // namespace halfgnn::cuda
