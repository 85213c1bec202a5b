// What a lane of GATv2's and dot attention's kernel holds of its row's own key and value, and its parts of the dots
// that are made of them. Where logits are split (config.cuh), the row is widened once, into shared memory.
#pragma once

#include <type_traits>

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
  static constexpr bool kIsShared = Config::kSplits;
  static constexpr int kAccess = 4;
  static constexpr int kPairs = kVector / 2, kQuads = kReadsOwnValue ? kVector / kAccess : 0;
  struct alignas(kAccess * sizeof(float)) Access {
    float value[kAccess];
  };
  struct Widened {
    Access own[kPairs + kQuads][Config::kThreads];
  };
  struct Nothing {};

 public:
  // Of a block, in fp32: what pairs of elements of a key meet, then quads of elements of the value. A lane reads what
  // it wrote.
  using Shared = std::conditional_t<kIsShared, Widened, Nothing>;

  __device__ explicit PairOwnRow(Shared& shared) : shared_(shared) {}

  __device__ void load(const PairArgs& args, uint32_t row, const HeadVectors<kRepeat>& vectors) {
    num_parts_ = vectors.count;
    const uint64_t first = offset_of(args, row);
    score_.load(args, static_cast<const char*>(args.own_key) + first, vectors);
    if constexpr (kReadsOwnValue) {
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        value_[r] = Row::load(static_cast<const char*>(args.own_value) + first + vectors.index[r] * Row::kBytes);
        if constexpr (Config::kSplits) value_[r].keep_if(r < vectors.count);
      }
    }
    if constexpr (kIsShared) {
      // The row is waited for to be widened, but the next one's key is in the L2 cache by then.
      const uint32_t next = row + 1 < args.units.rows.num_rows ? row + 1 : row;
      prefetch(static_cast<const char*>(args.own_key) + offset_of(args, next) + vectors.index[0] * Row::kBytes);
      share(args);
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
      float key_parts[kEdges], value_parts[kEdges] = {};
#pragma unroll
      for (int u = 0; u < kEdges; ++u) key_parts[u] = r == 0 ? score_.first() : 0.f;
      add_parts(args, rows, r, key_parts, value_parts);
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        const float key_part = Config::kSplits || r < num_parts_ ? score_.logit(args, key_parts[u]) : 0.f;
        const float value_part = Config::kSplits || r < num_parts_ ? value_parts[u] : 0.f;
        dots.key[u] = r == 0 ? key_part : dots.key[u] + key_part;
        dots.value[u] = r == 0 ? value_part : dots.value[u] + value_part;
      }
    }
  }

  // Turns the sum over edges into the gradient of the own key: Score::finish.
  __device__ void finish(const PairArgs& args, float factor_sum, int r, float (&sum)[kVector],
                         float (&product)[kVector]) const {
    if constexpr (kIsShared) {
      float own[kVector], attn[kVector];
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const Access access = shared_.own[j][threadIdx.x];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          own[2 * j + i] = access.value[i];
          attn[2 * j + i] = access.value[2 + i];
        }
      }
      Score::finish(args, factor_sum, own, attn, sum, product);
    } else {
      score_.finish(args, factor_sum, r, sum, product);
    }
  }

 private:
  using Element = typename Config::Element;

  // Of a row, in bytes.
  static __device__ uint64_t offset_of(const PairArgs& args, uint32_t row) {
    return static_cast<uint64_t>(row) * (args.row_elements * static_cast<uint32_t>(sizeof(Element)));
  }

  __device__ void share(const PairArgs& args) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const auto own = score_.own(0).widen(args, j);
      shared_.own[j][threadIdx.x] = {own.key[0], own.key[1], own.absolute[0], own.absolute[1]};
    }
    if constexpr (kReadsOwnValue) {
      float values[kVector];
      value_[0].widen(values);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const float* const quad = values + q * kAccess;
        shared_.own[kPairs + q][threadIdx.x] = {quad[0], quad[1], quad[2], quad[3]};
      }
    }
  }
  // Elements j * kWidth ... of the own key, as Score::add takes them, and of the own value.
  template <class OwnKey>
  __device__ auto own_pair(const PairArgs& args, const OwnKey& own_key, int j) const {
    if constexpr (kIsShared) {
      const Access access = shared_.own[j][threadIdx.x];
      typename Score::Own own;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        own.key[i] = access.value[i];
        own.absolute[i] = access.value[kWidth + i];
      }
      return own;
    } else {
      return own_key.widen(args, j);
    }
  }
  __device__ void own_value_pair(const Row& own_row, int j, float (&values)[kWidth]) const {
    if constexpr (kIsShared) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        values[i] = shared_.own[kPairs + kWidth * j / kAccess][threadIdx.x].value[kWidth * j % kAccess + i];
      }
    } else {
      widen_some(own_row, j, values);
    }
  }

  template <int kEdges>
  __device__ void add_parts(const PairArgs& args, const PairRows<Config, kEdges>& rows, int r,
                            float (&key_parts)[kEdges], float (&value_parts)[kEdges]) const {
    const auto own_key = score_.own(r);
    Row own_row;
    if constexpr (kReadsOwnValue) own_row = as_new(value_[r]);
#pragma unroll
    for (int j = 0; j < kVector / kWidth; ++j) {
      const auto own = own_pair(args, own_key, j);
      float own_value[kWidth];
      if constexpr (kReadsOwnValue) {
        own_value_pair(own_row, j, own_value);
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

  Shared& shared_;
  Score score_;
  Row value_[kReadsOwnValue ? kRepeat : 1];
  int num_parts_;  // that may enter a dot
};

}  // namespace halfgnn::cuda
