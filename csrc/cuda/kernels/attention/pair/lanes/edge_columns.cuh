// A row of columns that an edge adds to keys and values, and that all heads share (PairColumnArgs), for dot attention.
// Each lane of a head takes kPairColumns of them. Its part of what they add to an edge's dots is summed up with those
// of the rows, and their weighted sum is one more sum of the lane (sums.cuh).
#pragma once

#include "frame.cuh"
#include "own_row.cuh"

namespace halfgnn::cuda {

template <class Config>
class PairEdgeColumns {
  using Frame = PairFrame<Config>;
  using T = typename Config::Element;
  using Columns = Fragment<T, kPairColumns>;

 public:
  __device__ explicit PairEdgeColumns(const Frame& frame)
      : frame_(frame),
        exists_(static_cast<uint32_t>(frame.work.own) * kPairColumns < frame.args.edge.columns.count),
        first_(exists_ ? static_cast<uint32_t>(frame.work.own) * kPairColumns : 0) {}

  __device__ void start_row(uint32_t row) {
    load_own(args().query, row, query_);
#pragma unroll
    for (int i = 0; i < kPairColumns; ++i) query_[i] *= frame_.args.logit.linear;
    if constexpr (!Config::kForward) load_own(args().grad, row, grad_);
  }

  // Of a place past the last edge, those of that edge.
  template <class Batch>
  __device__ void load(const Batch& batch, PairRows<Config, Batch::kEdges>& rows) const {
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) {
      const uint32_t edge = __shfl_sync(kFullMask, batch.chunk.edge, batch.read(frame_.place(batch, u)));
      const uint64_t at = static_cast<uint64_t>(edge) * args().count + first_;
      rows.columns[u] = Columns::load_streaming(static_cast<const T*>(args().feat) + at);
    }
  }
  // Columns of places past the last edge, and of lanes past the last column, become 0.
  template <class Batch>
  __device__ void clear_missing(const Batch& batch, PairRows<Config, Batch::kEdges>& rows) const {
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) rows.columns[u].keep_if(exists_ && batch.has(frame_.place(batch, u)));
  }

  // Adds this lane's part of what columns add to dots: see PairOwnRow::find_dots.
  template <int kEdges>
  __device__ void add_dots(const PairRows<Config, kEdges>& rows, PairFactors<kEdges>& dots) const {
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      float columns[kPairColumns];
      rows.columns[u].widen(columns);
#pragma unroll
      for (int i = 0; i < kPairColumns; ++i) {
        dots.key[u] = fmaf(query_[i], columns[i], dots.key[u]);
        if constexpr (!Config::kForward) dots.value[u] = fmaf(grad_[i], columns[i], dots.value[u]);
      }
    }
  }

  // The sums over all edges of the piece, from those of the lane's group, times `factor`. The whole warp takes part.
  __device__ void store_sums(const Piece& piece, float factor, float (&sums)[kPairColumns]) const {
    if (args().sums == nullptr) return;
#pragma unroll
    for (int i = 0; i < kPairColumns; ++i) sums[i] *= factor;
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

  const Frame frame_;
  const bool exists_;
  const uint32_t first_;  // column of the lane
  // Of the row: what columns meet in logits, with the scale, and in the derivative by a weight.
  float query_[kPairColumns];
  float grad_[Config::kForward ? 1 : kPairColumns];
};

}  // namespace halfgnn::cuda
