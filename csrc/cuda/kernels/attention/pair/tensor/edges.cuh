// What edges add to dot attention on tensor cores (PairEdgeArgs): a bias, columns (columns.cuh), and records of
// edges between the passes of a backward. Numbers of edges are read for a chunk of 32, one edge per lane, and handed
// out to the lanes 4 g + t that work out the factors of edges g and g + 8 of a batch.
#pragma once

#include <type_traits>

#include "columns.cuh"
#include "frame.cuh"

namespace halfgnn::cuda {

enum class TensorTerms {
  kNone,
  kBias,    // and records in a backward
  kColumns  // the same with columns, and perhaps without a bias
};

template <typename T, PairPass kPass, TensorTerms kTerms>
class TensorEdges : TensorFrame<T> {
  using Frame = TensorFrame<T>;
  using Frame::args_, Frame::head_, Frame::lane_, Frame::statistic_at;
  static constexpr bool kForward = kPass == PairPass::kForward;

 public:
  static constexpr bool kHasColumns = kTerms == TensorTerms::kColumns;
  using Sums = TensorColumnSums<T>;
  using ColumnValues = float[Sums::kElements];
  struct NoTotals {};
  struct ColumnTotals {
    typename Sums::Totals columns;
  };
  // Of a block.
  using Shared = std::conditional_t<kHasColumns, ColumnTotals, NoTotals>;

  __device__ TensorEdges(const PairArgs& args, int head, Shared& shared) : Frame(args, head), sums_(shared) {}

  // ---- Rows and chunks.

  __device__ void start_row(uint32_t row) {
    if constexpr (kHasColumns) {
      const PairColumnArgs& columns = args_.edge.columns;
      query_.load(row_of(columns.query, row), columns.count, args_.logit.linear, lane_);
      if constexpr (!kForward) grad_.load(row_of(columns.grad, row), columns.count, 1.f, lane_);
      sums_.value.clear();
    }
  }

  // edge: the lane's.
  __device__ void start_chunk(uint32_t edge) {
    edge_ = edge;
    bias_ = 0.f;
    const PairEdgeArgs& terms = args_.edge;
    if (kHasColumns && terms.bias == nullptr) return;
    const int64_t at = statistic_at(edge);
    bias_ = terms.bias_is_float ? __ldg(static_cast<const float*>(terms.bias) + at)
                                : Fragment<T, 1>::load(static_cast<const T*>(terms.bias) + at).value();
  }

  // ---- Batches. The whole warp takes part.

  template <class Batch>
  __device__ TensorColumns<T> load_columns(const Batch& batch) const {
    uint32_t edges[2];
    batch.columns_by_row(edge_, lane_, edges);
    return {batch, args_.edge.columns, edges, lane_};
  }
  // What edges add to logits and, backward, to dots of values.
  template <class Batch>
  __device__ void add_to_logits(const Batch& batch, const TensorColumns<T>& columns, float (&logits)[2]) const {
    if (args_.edge.columns.query != nullptr) query_.add_dots(batch, columns, logits);
    add_to_logits(batch, logits);
  }
  template <class Batch>
  __device__ void add_to_logits(const Batch& batch, float (&logits)[2]) const {
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) logits[i] += batch.at_place(bias_, lane_.group + 8 * i);
  }
  template <class Batch>
  __device__ void add_to_values(const Batch& batch, const TensorColumns<T>& columns, float (&dots)[2]) const {
    if (args_.edge.columns.grad != nullptr) grad_.add_dots(batch, columns, dots);
  }

  // Lanes with t of 0 and 1 write records, the others gradients of biases.
  template <class Batch>
  __device__ void store_records(const Batch& batch, const float (&weights)[2], const float (&gradients)[2]) const {
    const int i = lane_.t % 2, place = lane_.group + 8 * i;
    const uint32_t edge = batch.at_place(edge_, place);
    const float weight = i == 0 ? weights[0] : weights[1], gradient = i == 0 ? gradients[0] : gradients[1];
    if (!batch.has(place)) return;
    if (lane_.t < 2) {
      char* const at = args_.edge_records.data + static_cast<uint64_t>(edge) * args_.edge_records.bytes;
      __stcs(reinterpret_cast<float2*>(at) + head_, make_float2(weight, gradient));
    } else if (args_.edge.grad_bias != nullptr) {
      store_result<T>(args_.edge.grad_bias, args_.edge.bias_is_float, statistic_at(edge), gradient);
    }
  }

  // ---- Sums of columns, if there are any.

  template <class Batch>
  __device__ void add_columns(const Batch& batch, const TensorColumns<T>& columns, const TensorFactors<T>& factors) {
    sums_.value.add(batch, columns, factors);
  }
  __device__ void multiply_sums(float factor) {
    if constexpr (kHasColumns) sums_.value.multiply(factor);
  }
  __device__ void end_run(bool has_total, float rescale, float unit) {
    if constexpr (kHasColumns) sums_.value.end_run(has_total, rescale, unit);
  }
  __device__ void finish(bool has_total, float rescale, float unit, ColumnValues& values) const {
    if constexpr (kHasColumns) sums_.value.finish(has_total, rescale, unit, values);
  }
  // Into the row, or the slot of a piece.
  __device__ void store_sums(const Piece& piece, const ColumnValues& values, float factor) const {
    const PairColumnArgs& columns = args_.edge.columns;
    if (!kHasColumns || columns.sums == nullptr) return;
    float* const rows = piece.is_whole_row ? columns.sums : columns.partial_sums;
    Sums::store(values, factor, rows + at_row(piece.line), columns.count, lane_);
  }

 private:
  __device__ int64_t at_row(uint32_t row) const {
    return statistic_at(row) * static_cast<int64_t>(args_.edge.columns.count);
  }
  __device__ const float* row_of(const float* rows, uint32_t row) const {
    return rows == nullptr ? nullptr : rows + at_row(row);
  }

  struct NoSums {
    __device__ explicit NoSums(NoTotals&) {}
  };
  struct ColumnSums {
    Sums value;
    __device__ explicit ColumnSums(ColumnTotals& shared) : value(shared.columns) {}
  };

  // The lane's, of the chunk.
  uint32_t edge_;
  float bias_;
  // Of the row.
  TensorOwnColumns<T> query_, grad_;
  std::conditional_t<kHasColumns, ColumnSums, NoSums> sums_;
};

}  // namespace halfgnn::cuda
