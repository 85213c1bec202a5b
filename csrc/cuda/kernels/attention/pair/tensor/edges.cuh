// What edges add to the kernels on tensor cores: policies of ../edges.cuh for biases and columns of dot attention.
//
// Numbers of edges are read for a chunk of 32, one edge per lane, and handed out to the lanes 4 g + t that work out the
// factors of edges g and g + 8 of a batch. The whole warp takes part in each of these.
#pragma once

#include "columns.cuh"
#include "frame.cuh"

namespace halfgnn::cuda {

struct NoTensorValues {};

// A bias, and the interface: what others do beside it where this has nothing.
template <typename T, PairPass kPass>
class TensorBias : protected TensorFrame<T> {
 protected:
  using Frame = TensorFrame<T>;
  using Frame::args_, Frame::head_, Frame::lane_, Frame::statistic_at;

 public:
  struct Shared {};               // of a block
  struct Held {};                 // of the edges of a batch
  using Values = NoTensorValues;  // sums of a row
  __device__ TensorBias(const PairArgs& args, int head, Shared&) : TensorBias(args, head) {}

  // ---- Rows and chunks. edge: the lane's.
  __device__ void start_row(uint32_t /*row*/) {}
  __device__ void start_chunk(uint32_t edge) {
    edge_ = edge;
    bias_ = 0.f;
    const PairEdgeArgs& terms = args_.edge;
    if (terms.bias == nullptr) return;
    const int64_t at = statistic_at(edge);
    bias_ = terms.bias_is_float ? __ldg(static_cast<const float*>(terms.bias) + at)
                                : Fragment<T, 1>::load(static_cast<const T*>(terms.bias) + at).value();
  }
  // ---- Batches.
  template <class Batch>
  __device__ Held load(const Batch&) const {
    return {};
  }
  // What edges add to logits and, backward, to dots of values.
  template <class Batch, class Held>
  __device__ void add_to_logits(const Batch& batch, const Held&, float (&logits)[2]) const {
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) logits[i] += batch.at_place(bias_, lane_.group + 8 * i);
  }
  template <class Batch, class Held>
  __device__ void add_to_values(const Batch&, const Held&, float (& /*dots*/)[2]) const {}
  // Backward. Lanes with t of 0 and 1 write records, the others gradients of biases.
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

  // ---- Sums over the edges of a row, as TensorFragmentSums has them.
  template <class Batch, class Held>
  __device__ void add_sums(const Batch&, const Held&, const TensorFactors<T>&) {}
  __device__ void multiply_sums(float /*factor*/) {}
  __device__ void end_run(bool /*has_total*/, float /*rescale*/, float /*unit*/) {}
  __device__ void finish(bool /*has_total*/, float /*rescale*/, float /*unit*/, Values&) const {}
  // Into the row, or the slot of a piece.
  __device__ void store_sums(const Piece&, const Values&, float /*factor*/) const {}

 protected:
  __device__ TensorBias(const PairArgs& args, int head) : Frame(args, head) {}

  // The lane's, of the chunk.
  uint32_t edge_;
  float bias_;
};

// Columns (columns.cuh), and perhaps a bias.
template <typename T, PairPass kPass>
class TensorEdgeColumns : public TensorBias<T, kPass> {
  using Base = TensorBias<T, kPass>;
  using Base::args_, Base::lane_, Base::statistic_at, Base::edge_;
  using Sums = TensorColumnSums<T>;

 public:
  using Shared = typename Sums::Totals;
  using Held = TensorColumns<T>;
  using Values = float[Sums::kElements];
  __device__ TensorEdgeColumns(const PairArgs& args, int head, Shared& shared) : Base(args, head), sums_(shared) {}

  __device__ void start_row(uint32_t row) {
    const PairColumnArgs& columns = args_.edge.columns;
    query_.load(row_of(columns.query, row), columns.count, args_.logit.linear, lane_);
    if constexpr (kPass != PairPass::kForward) grad_.load(row_of(columns.grad, row), columns.count, 1.f, lane_);
    sums_.clear();
  }

  template <class Batch>
  __device__ Held load(const Batch& batch) const {
    uint32_t edges[2];
    batch.columns_by_row(edge_, lane_, edges);
    return {batch, args_.edge.columns, edges, lane_};
  }
  template <class Batch>
  __device__ void add_to_logits(const Batch& batch, const Held& columns, float (&logits)[2]) const {
    if (args_.edge.columns.query != nullptr) query_.add_dots(batch, columns, logits);
    Base::add_to_logits(batch, columns, logits);
  }
  template <class Batch>
  __device__ void add_to_values(const Batch& batch, const Held& columns, float (&dots)[2]) const {
    if (args_.edge.columns.grad != nullptr) grad_.add_dots(batch, columns, dots);
  }

  template <class Batch>
  __device__ void add_sums(const Batch& batch, const Held& columns, const TensorFactors<T>& factors) {
    sums_.add(batch, columns, factors);
  }
  __device__ void multiply_sums(float factor) { sums_.multiply(factor); }
  __device__ void end_run(bool has_total, float rescale, float unit) { sums_.end_run(has_total, rescale, unit); }
  __device__ void finish(bool has_total, float rescale, float unit, Values& values) const {
    sums_.finish(has_total, rescale, unit, values);
  }
  __device__ void store_sums(const Piece& piece, const Values& values, float factor) const {
    const PairColumnArgs& columns = args_.edge.columns;
    if (columns.sums == nullptr) return;
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

  TensorOwnColumns<T> query_, grad_;
  Sums sums_;
};

}  // namespace halfgnn::cuda
