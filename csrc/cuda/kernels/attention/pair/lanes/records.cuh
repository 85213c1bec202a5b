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
        factors_(kKeepsFactors ? as_computed(frame.args.edge_records.data + factors_at()) : nullptr),
        signs_(Config::kHasSigns ? as_computed(frame.args.edge_records.data + signs_at(frame)) : nullptr) {}

  // An edge's owners, which have the same, write what values and keys are multiplied by.
  template <class Batch>
  __device__ void store_factors(const Batch& batch, const PairFactors<Batch::kEdges>& factors) const {
    const bool exists = frame_.work.exists(frame_.args.layout);
#pragma unroll
    for (int i = 0; i < Batch::kOwned; ++i) {
      const int place = frame_.owned_place(batch, i);
      char* const at = const_cast<char*>(record_at(batch, place, first_factors()));
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
      const char* const at = record_at(batch, frame_.place(batch, u), signs_);
      rows.signs[u] = rows.edges.signs(score, rows.keys[u][0], u);
      store_byte(const_cast<char*>(at), rows.signs[u]);
    }
  }

  template <class Batch>
  __device__ void load(const Batch& batch, PairFactors<Batch::kEdges>& factors,
                       uint32_t (&signs)[Batch::kEdges]) const {
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) {
      const uint32_t edge = edge_at(batch, frame_.place(batch, u));
      const float2 both = __ldg(reinterpret_cast<const float2*>(record_of(edge, first_factors())));
      factors.value[u] = both.x;
      factors.key[u] = both.y;
      if constexpr (Config::kHasSigns)
        signs[u] = __ldca(reinterpret_cast<const unsigned char*>(record_of(edge, signs_)));
    }
    // Not only when rows are used: the compiler keeps loads that are not read-only before this.
    if constexpr (Config::kHasSigns) __syncwarp();
  }

 private:
  // The lowest byte.
  static __device__ void store_byte(char* at, uint32_t value) {
#ifdef __CUDA_ARCH__
    asm volatile("st.global.cs.u8 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#else
    __stcs(reinterpret_cast<unsigned char*>(at), static_cast<unsigned char>(value));
#endif
  }
  // The edge at `place`; at a place past the last, the last. The whole warp takes part.
  template <class Batch>
  __device__ uint32_t edge_at(const Batch& batch, int place) const {
    return __shfl_sync(kFullMask, batch.chunk.edge, batch.read(place));
  }
  // The part of its record that is `first` in the first one.
  __device__ const char* record_of(uint32_t edge, const char* first) const {
    const uint32_t bytes = frame_.args.edge_records.bytes;
    return first + (Config::kKeepsProducts ? wide_product(edge, bytes) : uint64_t{edge} * bytes);
  }
  template <class Batch>
  __device__ const char* record_at(const Batch& batch, int place, const char* first) const {
    return record_of(edge_at(batch, place), first);
  }

  // The lane's factors of the first record.
  __device__ const char* first_factors() const {
    return kKeepsFactors ? factors_ : frame_.args.edge_records.data + factors_at();
  }
  // Where in a record the lane's parts are.
  __device__ uint32_t factors_at() const {
    return static_cast<uint32_t>(frame_.work.read(frame_.args.layout)) * static_cast<uint32_t>(sizeof(float2));
  }
  static __device__ uint32_t signs_at(const Frame& frame) {
    return frame.args.edge_records.signs_at + HeadVectors<1>(frame.args.layout, frame.work, 0).index[0];
  }

  static constexpr bool kKeepsFactors = Config::kReadsRecords && Config::kKeepsProducts;

  const Frame frame_;
  // Of the first record.
  const char* factors_;
  const char* signs_;
};

}  // namespace halfgnn::cuda
