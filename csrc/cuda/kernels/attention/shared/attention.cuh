// What the kernels of the fused attentions share: exponentials, dropout, results that the backward reads, and what
// pieces of long rows leave behind (see rows.cuh).
//
// Softmax is computed with a running maximum (Milakov and Gimelshein, "Online normalizer calculation for softmax",
// 2018), and pieces of a row are merged as flash-decoding merges splits: each leaves its maximum, and sums relative to
// that. A piece starts with the maximum kLowestLogit.
#pragma once

#include <cfloat>

#include "../../../../core/attention.h"
#include "../../../../core/philox.h"
#include "../../core/rows.cuh"
#include "../../core/softmax.cuh"
#include "../../core/vector.cuh"
#include "workspace.h"

namespace halfgnn::cuda {

inline __device__ float leaky_relu(float x, float slope) { return x > 0.f ? x : x * slope; }

// What the sums of a row are multiplied by: 1 / sum of exponentials, and 0 if there are no edges.
inline __device__ float reciprocal_of_sum(float sum, bool has_edges) { return has_edges ? 1.f / sum : 0.f; }
inline __device__ float lse_of(float maximum, float sum, bool has_edges) {
  return has_edges ? maximum + logf(sum) : 0.f;
}

// ---- Dropout, as in csrc/core/attention.h.

struct DropoutMask {
  const int64_t* seed;  // null: nothing is dropped
  uint32_t threshold;
  float scale;

  __device__ bool is_on() const { return seed != nullptr; }
  // Bit i: head 4 quad + i of the edge is dropped. About 60 instructions; the seed is in the L1 cache.
  __device__ uint32_t dropped(uint32_t edge, uint32_t quad) const {
    const auto seed0 = static_cast<uint64_t>(__ldg(reinterpret_cast<const long long*>(seed)));
    const auto seed1 = static_cast<uint64_t>(__ldg(reinterpret_cast<const long long*>(seed) + 1));
    const RandomWords random = dropout_words(seed0, seed1, edge, quad);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) bits |= random.word[i] < threshold ? 1u << i : 0u;
    return bits;
  }
  // m_e of one head.
  __device__ float factor(uint32_t edge, uint32_t head) const {
    if (!is_on()) return 1.f;
    return (dropped(edge, head >> 2) >> (head & 3) & 1) != 0 ? 0.f : scale;
  }
};
inline DropoutMask mask_of(const Dropout& dropout) {
  return {dropout.seed, dropout.threshold, static_cast<float>(dropout.scale)};
}

// ---- Results that the backward reads back as value + residual.

// x at elements i, i + 1, ...: needs the alignment of store_rounded. Rounding an x that is too large for T leaves no
// residual, so that it is read back as inf rather than nan.
template <typename T, int kCount>
__device__ void store_precise(const Precise& target, int64_t i, const float (&x)[kCount]) {
  store_rounded(static_cast<T*>(target.value) + i, x);
  if (target.residual == nullptr) return;
  float lost[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float value = Convert<T>::widen(Convert<T>::round(x[j]));
    lost[j] = fabsf(value) <= FLT_MAX ? x[j] - value : 0.f;
  }
  store_rounded(static_cast<T*>(target.residual) + i, lost);
}

// Elements i, i + 1, ... of what store_precise wrote; read once.
template <typename T, int kCount>
__device__ void load_precise(const Precise& source, int64_t i, float (&x)[kCount]) {
  Fragment<T, kCount>::load_streaming(static_cast<const T*>(source.value) + i).widen(x);
  if (source.residual != nullptr) {
    Fragment<T, kCount>::load_streaming(static_cast<const T*>(source.residual) + i).add_to(x);
  }
}

// Alignment of a value and its residual to `bytes`.
inline bool is_aligned(const Precise& result, int64_t bytes) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(result.value) | reinterpret_cast<uintptr_t>(result.residual);
  return bits % static_cast<uintptr_t>(bytes) == 0;
}

// ---- Long rows.

// What a piece leaves of one head.
struct alignas(16) PieceSums {
  float maximum;
  float sum;       // of exp(logit - maximum)
  float positive;  // of GAT: the same of edges with a positive s_e
  float unused;
};

// A slot's place in the workspace. Vectors: sums of m_e exp(logit - maximum) value[u], and for GAT, where the backward
// wants them, those of the positive edges behind them.
struct AttentionPartials {
  PieceSums* sums;  // (slots, heads)
  float* vectors;   // (slots, num_vectors, heads * dim)
  int32_t num_vectors;

  __device__ void store_sums(int64_t slot, int64_t heads, int64_t head, const PieceSums& value) const {
    __stcs(reinterpret_cast<float4*>(sums + slot * heads + head),
           make_float4(value.maximum, value.sum, value.positive, 0.f));
  }
  __device__ PieceSums load_sums(int64_t slot, int64_t heads, int64_t head) const {
    const float4 value = __ldg(reinterpret_cast<const float4*>(sums + slot * heads + head));
    return {value.x, value.y, value.z, value.w};
  }
  __device__ float* vector(int64_t slot, int64_t len, int64_t which) const {
    return vectors + (slot * num_vectors + which) * len;
  }
};
inline AttentionPartials take_partials(Workspace& workspace, const Rows& rows, int64_t heads, int64_t dim,
                                       int num_vectors) {
  auto* sums = workspace.take<PieceSums>(rows.num_slots * heads);
  return {sums, workspace.take<float>(rows.num_slots * num_vectors * heads * dim), num_vectors};
}

// Writes the results of the long rows from those of their pieces, merged in the order of the slots.
struct AttentionCombineArgs {
  Rows rows;
  AttentionPartials partials;
  int64_t heads, dim;
  DType type;
  Precise out;
  float* lse;      // may be null
  void* positive;  // of GAT; null with one vector
};
// Launches nothing if no row can be long.
cudaError_t combine_attention(const AttentionCombineArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
