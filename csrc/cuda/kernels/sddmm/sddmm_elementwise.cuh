// The kernel behind sddmm_elementwise. Include only where it is instantiated (sddmm_elementwise_<type>.cu).
//
// Method. A warp takes a chunk of up to kChunkEdges consecutive positions. It finds out, one position per lane, which
// rows of the operands and of the result each needs, and leaves that in shared memory. Then lanes walk the chunk's
// (edge, vector) pairs in order, whatever the number of vectors per edge: accesses are coalesced, and several of them
// in flight, for results of one value as for those of a thousand.
#pragma once

#include <type_traits>

#include "../core/rows.cuh"
#include "../core/vector.cuh"
#include "sddmm_elementwise.h"

namespace halfgnn::cuda {

constexpr int kElementwiseThreads = kElementwiseWarps * kWarpSize;

// One operand is copied; three are added up.
template <typename T, int kVectorElements, int kNumOperands>
struct ElementwiseConfig {
  using Element = T;
  static constexpr int kVector = kVectorElements;
  static constexpr int kOperands = kNumOperands;
  static constexpr int kVectorBytes = kVector * static_cast<int>(sizeof(T));
  // Pairs whose vectors a lane has in flight: at most 64 bytes.
  static constexpr int kUnroll = kOperands * kVectorBytes > 16 ? 2 : 4;
  // An fp32 result of halves is one access, too: its vectors are half as long.
  static constexpr bool kFitsFloat = kVector * 4 <= kMaxAccessBytes;
};

// Rows of the operands and of the result, for each edge of a warp's chunk.
template <class Config>
struct ElementwiseChunk {
  uint32_t operand[Config::kOperands][kChunkEdges];
  uint32_t result[kChunkEdges];
};

// Fills in the chunk of positions begin ... begin + count - 1. The whole warp takes part.
template <class Config>
__device__ void find_rows(const ElementwiseArgs& args, RowsOfEdges& rows, int64_t begin, int count, int lane,
                          ElementwiseChunk<Config>& chunk) {
  constexpr int kParts = kChunkEdges / kWarpSize;
  uint32_t col[kParts], edge[kParts];
#pragma unroll
  for (int c = 0; c < kParts; ++c) {
    const int i = c * kWarpSize + lane;
    const int64_t position = begin + (i < count ? i : count - 1);
    col[c] = args.reads_col ? args.indices.id(position) : 0;
    edge[c] = args.edge_ids.id(position);
  }
#pragma unroll
  for (int c = 0; c < kParts; ++c) {
    const int i = c * kWarpSize + lane;
#pragma unroll
    for (int k = 0; k < Config::kOperands; ++k) {
      chunk.operand[k][i] = args.operand[k].target == Target::kCol ? col[c] : edge[c];
    }
    chunk.result[i] = edge[c];
  }
  if (!args.reads_row) return;
#pragma unroll 1
  for (int i = lane; i - lane < count; i += kWarpSize) {
    const auto row = static_cast<uint32_t>(rows.next(begin + i - lane));
#pragma unroll
    for (int k = 0; k < Config::kOperands; ++k) {
      if (args.operand[k].target == Target::kRow) chunk.operand[k][i] = row;
    }
  }
}

// The (edge, vector) pairs that a lane takes: every 32nd of a chunk.
struct PairWalk {
  int edge, vector;
  int num_vectors;
  int edge_step, vector_step;

  __device__ PairWalk(int lane, int num_vectors)
      : edge(lane / num_vectors),
        vector(lane % num_vectors),
        num_vectors(num_vectors),
        edge_step(kWarpSize / num_vectors),
        vector_step(kWarpSize % num_vectors) {}
  __device__ void advance() {
    edge += edge_step;
    vector += vector_step;
    const bool wraps = vector >= num_vectors;
    edge += wraps;
    vector -= wraps ? num_vectors : 0;
  }
};

template <class Config>
struct ElementwiseBatch {
  static constexpr int kUnroll = Config::kUnroll;
  static constexpr int kVector = Config::kVector;
  using Row = Fragment<typename Config::Element, kVector>;

  Row loaded[Config::kOperands][kUnroll];
  int64_t target[kUnroll];  // element of the result
  bool exists[kUnroll];

  // The next kUnroll pairs of the walk. Past the chunk's `count` edges, vectors of the last edge are loaded again.
  __device__ ElementwiseBatch(const ElementwiseArgs& args, const ElementwiseChunk<Config>& chunk, int first_vector,
                              int count, PairWalk& walk) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      exists[u] = walk.edge < count;
      const int edge = exists[u] ? walk.edge : count - 1;
      const uint32_t vector = first_vector + walk.vector;
#pragma unroll
      for (int k = 0; k < Config::kOperands; ++k) {
        const uint64_t offset = static_cast<uint64_t>(chunk.operand[k][edge]) * args.row_bytes;
        loaded[k][u] =
            Row::load(static_cast<const char*>(args.operand[k].data) + offset + vector * Config::kVectorBytes);
      }
      target[u] = static_cast<int64_t>(chunk.result[edge]) * args.row_vectors + vector;
      walk.advance();
    }
  }

  __device__ void store(const ElementwiseArgs& args, int u, const float (&values)[kVector]) const {
    if (!exists[u]) return;
    using T = typename Config::Element;
    if constexpr (Config::kFitsFloat && sizeof(T) < sizeof(float)) {
      if (args.out_is_float) return store_rounded(static_cast<float*>(args.out) + target[u] * kVector, values);
    }
    store_rounded(static_cast<T*>(args.out) + target[u] * kVector, values);
  }

  template <class Combine>
  __device__ void store_all(const ElementwiseArgs& args, Combine combine) const {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float values[kVector];
      loaded[0][u].widen(values);
#pragma unroll
      for (int k = 1; k < Config::kOperands; ++k) {
        float other[kVector];
        loaded[k][u].widen(other);
#pragma unroll
        for (int i = 0; i < kVector; ++i) values[i] = combine(values[i], other[i]);
      }
      store(args, u, values);
    }
  }

  __device__ void combine_and_store(const ElementwiseArgs& args) const {
    if constexpr (Config::kOperands == 3) return store_all(args, [](float x, float y) { return x + y; });
    if (Config::kOperands == 1 || args.op == Op::kAdd || args.op == Op::kSub) {
      const float sign = args.op == Op::kSub ? -1.f : 1.f;  // the product is exact
      return store_all(args, [sign](float x, float y) { return fmaf(sign, y, x); });
    }
    if (args.op == Op::kMul) return store_all(args, [](float x, float y) { return x * y; });
    store_all(args, [](float x, float y) { return x / y; });
  }
};

// At most 64 registers per lane, 72 on sm_100.
constexpr int kElementwiseMinBlocks = kCompiledArch >= 1000 ? 7 - kBlockLess : 8;

template <class Config>
__global__ void __launch_bounds__(kElementwiseThreads, kElementwiseMinBlocks)
    sddmm_elementwise_kernel(const ElementwiseArgs args) {
  __shared__ ElementwiseChunk<Config> chunks[kElementwiseWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t unit = static_cast<int64_t>(blockIdx.x % args.slice_blocks) * kElementwiseWarps + warp;
  const int64_t first = unit * args.edges_per_warp, num_edges = args.rows.num_edges;
  if (first >= num_edges) return;  // whole warps
  const int64_t past = first + args.edges_per_warp;
  const int64_t last = past < num_edges ? past : num_edges;
  const int first_vector = static_cast<int>(blockIdx.x / args.slice_blocks) * args.slice_vectors;
  const int left = args.row_vectors - first_vector;
  const int num_vectors = left < args.slice_vectors ? left : args.slice_vectors;

  ElementwiseChunk<Config>& chunk = chunks[warp];
  RowsOfEdges rows(args.rows, first, lane);
#pragma unroll 1
  for (int64_t begin = first; begin < last; begin += kChunkEdges) {
    const int count = static_cast<int>(last - begin < kChunkEdges ? last - begin : kChunkEdges);
    find_rows<Config>(args, rows, begin, count, lane, chunk);
    __syncwarp();
    PairWalk walk(lane, num_vectors);
    const int pairs = count * num_vectors;
#pragma unroll 1
    for (int pair = 0; pair < pairs; pair += Config::kUnroll * kWarpSize) {
      const ElementwiseBatch<Config> batch(args, chunk, first_vector, count, walk);
      batch.combine_and_store(args);
    }
    __syncwarp();
  }
}

template <typename T>
cudaError_t sddmm_elementwise_of(const ElementwiseArgs& args, int vector, int64_t blocks, cudaStream_t stream) {
  const auto run = [&](auto config) {
    return launch(sddmm_elementwise_kernel<decltype(config)>, blocks, kElementwiseThreads, stream, args);
  };
  const auto run_vector = [&](auto length) {
    constexpr int kVector = decltype(length)::value;
    if (args.operand[1].data == nullptr) return run(ElementwiseConfig<T, kVector, 1>{});
    return args.operand[2].data == nullptr ? run(ElementwiseConfig<T, kVector, 2>{})
                                           : run(ElementwiseConfig<T, kVector, 3>{});
  };
  switch (vector) {
    case 8:
      if constexpr (sizeof(T) == 2) return run_vector(std::integral_constant<int, 8>{});
      return cudaErrorInvalidValue;
    case 4: return run_vector(std::integral_constant<int, 4>{});
    case 2: return run_vector(std::integral_constant<int, 2>{});
    default: return run_vector(std::integral_constant<int, 1>{});
  }
}

}  // namespace halfgnn::cuda
