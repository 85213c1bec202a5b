// What edges add to the kernels of lanes: the interface of the policies in ../edges.cuh, as LaneEdges, which adds
// nothing; and biases, which all others may have too.
//
// A lane calls these in their order. `batch` has all edges of its group; `owned` is a batch of those that it owns. The
// whole warp takes part in each.
#pragma once

#include "factors.cuh"

namespace halfgnn::cuda {

template <class Config>
class LaneEdges {
 protected:
  using T = typename Config::Element;
  using Frame = PairFrame<Config>;

 public:
  // Of a block. It is filled by the constructor, in which the whole block takes part.
  struct Shared {};
  __device__ LaneEdges(const Frame& frame, Shared&) : LaneEdges(frame) {}

  // What a lane holds of the edges of a batch, among its rows.
  template <int kEdges>
  struct Held {
    // Adds what edge u adds to its key or value: to all elements of the lane's vector, or to elements 2 j and the next.
    template <int kWidth>
    __device__ void add_to_key(int /*u*/, int /*j*/, float (& /*key*/)[kWidth]) const {}
    template <int kWidth>
    __device__ void add_to_value(int /*u*/, int /*j*/, float (& /*value*/)[kWidth]) const {}
    template <int kVector>
    __device__ void add_to_key(int /*u*/, float (& /*key*/)[kVector]) const {}
    template <int kVector>
    __device__ void add_to_value(int /*u*/, float (& /*value*/)[kVector]) const {}
    // Where z is positive, for records: of the column's key, and what edge u adds.
    template <class Score>
    __device__ uint32_t signs(const Score& score, const typename Config::Row& key, int /*u*/) const {
      return score.signs(key);
    }
  };

  // ---- Of a row.
  __device__ void start_row(uint32_t /*row*/) {}

  // ---- Of a batch.
  // Loads only; of a place past the last edge, what that edge has. Terms of edges that a lane owns last.
  template <class Batch, class Rows>
  __device__ void load(const Batch&, Rows&) const {}
  template <class Owned, class Factors>
  __device__ void load_owned(const Owned&, Factors&) const {}
  // What is made of what was loaded, before dots are.
  template <class Batch, class Rows>
  __device__ void prepare(const Batch&, Rows&) const {}
  // Adds the lane's parts of dots that do not come from keys and values.
  template <class Batch, class Rows, class Factors>
  __device__ void add_dots(const Batch&, Rows&, Factors&) const {}
  // Adds to the logits of the edges that a lane owns.
  template <class Owned, class Factors>
  __device__ void add_to_logits(const Owned&, Factors&) const {}
  // Adds to the lane's sums of the row, which are multiplied by `rescale`.
  template <class Rows, class Factors>
  __device__ void add_sums(const Rows&, const Factors&, float /*rescale*/) {}
  // In the pass to destinations: gradients, of the edges that a lane owns and of all.
  template <class Owned, class Factors>
  __device__ void store_owned_gradients(const Owned&, const Factors&) const {}
  template <class Owned, class Factors>
  __device__ void hand_out(const Owned&, Factors&) const {}  // from an edge's owner to all lanes, what these want
  template <class Batch, class OwnRow, class Rows, class Factors, class Products>
  __device__ void store_gradients(const Batch&, const OwnRow&, const Rows&, const Factors&, Products&) const {}

  // ---- Of a row's sums: PairSums::end_run, and their end.
  __device__ void clear_sums() {}
  __device__ void end_run(bool /*has_total*/, bool /*is_last*/, float /*rescale*/) {}
  __device__ void store_sums(const Piece&, float /*factor*/) const {}

 protected:
  explicit __device__ LaneEdges(const Frame& frame) : frame_(frame) {}

  __device__ const PairEdgeArgs& terms() const { return frame_.args.edge; }
  // The edge at a place of the chunk; at one past the last, the last.
  template <class Batch>
  __device__ uint32_t edge_at(const Batch& batch, int place) const {
    return __shfl_sync(kFullMask, batch.chunk.edge, batch.read(place));
  }

  const Frame frame_;
};

template <class Config>
class LaneBias : public LaneEdges<Config> {
  using Base = LaneEdges<Config>;

 protected:
  using Base::edge_at;
  using Base::frame_;
  using Base::terms;
  using typename Base::Frame;
  using typename Base::T;

 public:
  using Base::Base;

  template <class Owned, class Factors>
  __device__ void load_owned(const Owned& owned, Factors& factors) const {
#pragma unroll
    for (int i = 0; i < Owned::kOwned; ++i) {
      const uint64_t at = entry_of(owned, frame_.owned_place(owned, i));
      factors.bias[i] = 0.f;
      if (!Config::Terms::kHasBias && terms().bias == nullptr) continue;
      factors.bias[i] = terms().bias_is_float ? __ldg(static_cast<const float*>(terms().bias) + at)
                                              : Fragment<T, 1>::load(static_cast<const T*>(terms().bias) + at).value();
    }
  }
  template <class Owned, class Factors>
  __device__ void add_to_logits(const Owned&, Factors& factors) const {
#pragma unroll
    for (int i = 0; i < Owned::kOwned; ++i) factors.key[i] += factors.bias[i];
  }
  // Those of biases are those of logits.
  template <class Owned, class Factors>
  __device__ void store_owned_gradients(const Owned& owned, const Factors& factors) const {
    if (terms().grad_bias == nullptr) return;
    const bool writes = frame_.writes_owned(owned);
#pragma unroll
    for (int i = 0; i < Owned::kOwned; ++i) {
      const int place = frame_.owned_place(owned, i);
      const uint64_t at = entry_of(owned, place);
      if (!writes || !owned.has(place)) continue;
      store_result<T>(terms().grad_bias, terms().bias_is_float, at, factors.owned_key[i]);
    }
  }

 private:
  // Where the lane's head is in the data of the edge at `place`.
  template <class Batch>
  __device__ uint64_t entry_of(const Batch& batch, int place) const {
    const HeadLayout& layout = frame_.args.layout;
    return static_cast<uint64_t>(edge_at(batch, place)) * layout.heads + frame_.work.read(layout);
  }
};

}  // namespace halfgnn::cuda
