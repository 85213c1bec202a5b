// What a lane of GATv2's and dot attention's kernel holds of its row's own key and value, and its parts of the dots
// that are made of them.
#pragma once

#include "rows.cuh"

namespace halfgnn::cuda {

template <class Config>
class PairOwnRow {
  using Score = typename Config::Score;
  using Row = typename Config::Row;
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;
  static constexpr bool kReadsOwnValue = Config::kReadsOwnValue;
  static constexpr int kWidth = kPairWidth<kVector>;

 public:
  __device__ void load(const PairArgs& args, uint32_t row, const HeadVectors<kRepeat>& vectors) {
    num_parts_ = vectors.count;
    const uint64_t first = static_cast<uint64_t>(row) * (args.row_elements * static_cast<uint32_t>(sizeof(Element)));
    score_.load(args, static_cast<const char*>(args.own_key) + first, vectors);
    if constexpr (kReadsOwnValue) {
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        value_[r] = Row::load(static_cast<const char*>(args.own_value) + first + vectors.index[r] * Row::kBytes);
      }
    }
  }
  __device__ const Score& score() const { return score_; }

  // The vector of the lane that is first in `own`, which it writes of its edges' gradients.
  __device__ bool exists() const { return num_parts_ > 0; }
  __device__ const Row& value() const { return value_[0]; }

  // This lane's parts of the dots: key, of the logit; value, backward, of the derivative by the weight. Edges come
  // innermost: then little of the row's own is widened at any time.
  template <int kEdges>
  __device__ void find_dots(const PairArgs& args, const PairRows<Config, kEdges>& rows,
                            PairFactors<kEdges>& dots) const {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float key_parts[kEdges] = {}, value_parts[kEdges] = {};
      add_parts(args, rows, r, key_parts, value_parts);
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        const float key_part = r < num_parts_ ? score_.logit(args, key_parts[u]) : 0.f;
        const float value_part = r < num_parts_ ? value_parts[u] : 0.f;
        dots.key[u] = r == 0 ? key_part : dots.key[u] + key_part;
        dots.value[u] = r == 0 ? value_part : dots.value[u] + value_part;
      }
    }
  }

 private:
  using Element = typename Config::Element;

  template <int kEdges>
  __device__ void add_parts(const PairArgs& args, const PairRows<Config, kEdges>& rows, int r,
                            float (&key_parts)[kEdges], float (&value_parts)[kEdges]) const {
    const auto own_key = score_.own(r);
    Row own_row;
    if constexpr (kReadsOwnValue) own_row = as_new(value_[r]);
#pragma unroll
    for (int j = 0; j < kVector / kWidth; ++j) {
      const auto own = own_key.widen(args, j);
      float own_value[kWidth];
      if constexpr (kReadsOwnValue) {
        widen_some(own_row, j, own_value);
      } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) own_value[i] = own.key[i];
      }
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        float key[kWidth], value[kWidth];
        rows.widen_key(u, r, j, key);
        score_.add(own, key, key_parts[u]);
        if constexpr (!Config::kForward) {
          rows.widen_value(u, r, j, value);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) value_parts[u] = fmaf(own_value[i], value[i], value_parts[u]);
        }
      }
    }
  }

  Score score_;
  Row value_[kReadsOwnValue ? kRepeat : 1];
  int num_parts_;  // that may enter a dot
};

}  // namespace halfgnn::cuda
