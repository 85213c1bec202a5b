// Records of edges, which the pass to destinations leaves to the pass to sources: plan/edge_records.h. A record lies at
// the edge's id, which both passes know.
#pragma once

#include "rows.cuh"

namespace halfgnn::cuda {

template <class Config>
class PairEdgeRecords {
  using Frame = PairFrame<Config>;
  using Score = typename Config::Score;

 public:
  __device__ explicit PairEdgeRecords(const Frame& frame)
      : frame_(frame),
        signs_(Config::kHasSigns ? as_computed(frame.args.edge_records.data + signs_at(frame)) : nullptr) {}

  // An edge's owners, which have the same, write what values and keys are multiplied by.
  template <class Batch>
  __device__ void store_factors(const Batch& batch, const PairFactors<Batch::kEdges>& factors) const {
    const bool exists = frame_.work.exists(frame_.args.layout);
#pragma unroll
    for (int i = 0; i < Batch::kOwned; ++i) {
      const int place = frame_.owned_place(batch, i);
      char* const at = frame_.args.edge_records.data + (offset_of(batch, place) + factors_at());
      if (!exists || !batch.has(place)) continue;
      __stcs(reinterpret_cast<float2*>(at), make_float2(factors.value[i], factors.owned_key[i]));
    }
  }
  // Every lane writes those of its vector. rows: as they are read, so that those of a place past the last edge have the
  // signs of that edge. Lanes and heads that repeat the last ones have the same.
  template <class Batch>
  __device__ void store_signs(const Batch& batch, const Score& score, PairRows<Config, Batch::kEdges>& rows) const {
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) {
      const char* const at = signs_ + offset_of(batch, frame_.place(batch, u));
      rows.signs[u] = rows.edges.signs(score, rows.keys[u][0], u);
      __stcs(reinterpret_cast<unsigned char*>(const_cast<char*>(at)), static_cast<unsigned char>(rows.signs[u]));
    }
  }

  template <class Batch>
  __device__ void load(const Batch& batch, PairFactors<Batch::kEdges>& factors,
                       uint32_t (&signs)[Batch::kEdges]) const {
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) {
      const uint64_t at = offset_of(batch, frame_.place(batch, u));
      const float2 both = __ldg(reinterpret_cast<const float2*>(frame_.args.edge_records.data + (at + factors_at())));
      factors.value[u] = both.x;
      factors.key[u] = both.y;
      if constexpr (Config::kHasSigns) signs[u] = __ldg(reinterpret_cast<const unsigned char*>(signs_ + at));
    }
  }

 private:
  // Where the record of the edge at `place` starts; of a place past the last, of the last. The whole warp takes part.
  template <class Batch>
  __device__ uint64_t offset_of(const Batch& batch, int place) const {
    const uint32_t edge = __shfl_sync(kFullMask, batch.chunk.edge, batch.read(place));
    return static_cast<uint64_t>(edge) * frame_.args.edge_records.bytes;
  }

  // Where in a record the lane's parts are.
  __device__ uint32_t factors_at() const {
    return static_cast<uint32_t>(frame_.work.read(frame_.args.layout)) * static_cast<uint32_t>(sizeof(float2));
  }
  static __device__ uint32_t signs_at(const Frame& frame) {
    return frame.args.edge_records.signs_at + HeadVectors<1>(frame.args.layout, frame.work, 0).index[0];
  }

  const Frame frame_;
  const char* signs_;  // of the first record
};

}  // namespace halfgnn::cuda
