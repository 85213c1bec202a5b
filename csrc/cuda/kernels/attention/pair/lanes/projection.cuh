// Columns that edges add to GATv2's keys (PairColumnArgs), projected by the weight: x_e = weight f_e, for the edges of
// a batch alone. A warp loads the columns of its edges at once: a lane has four of them, of one edge in every
// kEdgesOfRound.
//
// Halves are projected on tensor cores (sm_80 and later; fragments: core/mma.cuh). What a lane has loaded is a fragment
// of a matrix as it is, and the weight lies in shared memory in fragments. Their products have two edges in a lane, so
// x_e goes through shared memory to the lanes that have the elements of its key. In fp32, each lane multiplies columns,
// which the warp shares in shared memory, by its elements of the weight.
#pragma once

#include "../../../core/mma.cuh"
#include "edges.cuh"
#include "rows.cuh"

namespace halfgnn::cuda {

// What columns of edges add to keys: of halves where the warp left it in shared memory.
template <typename T, int kVector, int kEdges>
struct ProjectedKeys {
  static constexpr int kPart = 4;  // elements that lie together
  static constexpr int kPartStride = 4 * kWarpSize * kPart;
  const float* at[kEdges];
  // Elements 2 j and the next of edge u.
  __device__ float2 pair(int u, int j) const {
    return *reinterpret_cast<const float2*>(at[u] + 2 * j / kPart * kPartStride + 2 * j % kPart);
  }
};
template <int kVector, int kEdges>
struct ProjectedKeys<float, kVector, kEdges> {
  float value[kEdges][kVector];
  __device__ float2 pair(int u, int j) const { return make_float2(value[u][2 * j], value[u][2 * j + 1]); }
};

template <class Config>
class LaneProjection : public LaneBias<Config> {
  using Base = LaneBias<Config>;
  using Base::edge_at;
  using Base::frame_;
  using typename Base::Frame;
  using typename Base::T;
  using Row = typename Config::Row;
  static constexpr int kVector = Config::kVector;
  static constexpr bool kOnTensorCores = sizeof(T) == 2;
  static constexpr int kQuads = kMaxProjected / kPairColumns;
  static constexpr int kEdgesOfRound = kWarpSize / kQuads;
  static constexpr int kEdgesOfWarp = kWarpSize;  // of a batch, at most
  using Columns = Fragment<T, kPairColumns>;
  template <int kEdges>
  using Projected = ProjectedKeys<T, kVector, kEdges>;

  struct alignas(kPairColumns * sizeof(float)) Quad {
    float value[kPairColumns];
  };
  // Of halves: of a lane's four edges, x_e in two quads; in fp32, columns of the warp's edges. Both as many.
  static constexpr int kQuadsOfHalf = kWarpSize * 4;

 public:
  struct Shared {
    // Of halves: for each tile of 16 elements, a lane's fragment. In fp32: of each column, a lane's elements.
    Row weight[kMaxProjected][kWarpSize];
    Quad of_warp[Config::kWarps][kOnTensorCores ? 2 * kQuadsOfHalf : kEdgesOfWarp * kQuads];
  };
  template <int kEdges>
  struct Held : Base::template Held<kEdges> {
    Columns columns[kEdges];  // that the lane loads for the warp
    Projected<kEdges> projected;

    template <int kWidth>
    __device__ void add_to_key(int u, int j, float (&key)[kWidth]) const {
      static_assert(kWidth == 2, "pairs");
      const float2 more = projected.pair(u, j);
      key[0] += more.x;
      key[1] += more.y;
    }
    template <class Score>
    __device__ uint32_t signs(const Score& score, const Row& key, int u) const {
      float z[kVector];
      as_new(key).widen(z);
#pragma unroll
      for (int j = 0; j < kVector / 2; ++j) {
        const float2 more = projected.pair(u, j);
        z[2 * j] += more.x;
        z[2 * j + 1] += more.y;
      }
      return score.signs(z);
    }
  };

  __device__ LaneProjection(const Frame& frame, Shared& shared) : Base(frame), shared_(shared) {
    for (uint32_t i = threadIdx.x; i < kMaxProjected * kWarpSize; i += Config::kThreads) {
      const uint32_t row = i / kWarpSize, lane = i % kWarpSize;
      if constexpr (kOnTensorCores) {
        shared_.weight[row][lane] = load_fragment(row, lane);
      } else {
        shared_.weight[row][lane] = load_column(row, lane);
      }
    }
    __syncthreads();
  }

  // Columns past the last one are 0.
  template <class Batch, class Rows>
  __device__ void load(const Batch& batch, Rows& rows) const {
#pragma unroll
    for (int r = 0; r < Batch::kEdges; ++r) {
      if (r * kEdgesOfRound >= num_edges(batch)) break;
      const int place = batch.start + min(edge_of(r), num_edges(batch) - 1);
      const uint32_t edge = edge_at(batch, place);
      const uint32_t first = quad_of_lane() * kPairColumns;
      rows.edges.columns[r] = Columns{};
      if (first >= args().count) continue;
      const uint64_t at = static_cast<uint64_t>(edge) * args().count + first;
      rows.edges.columns[r] = Columns::load_streaming(static_cast<const T*>(args().feat) + at);
    }
  }

  template <class Batch, class Rows>
  __device__ void prepare(const Batch& batch, Rows& rows) const {
    const Columns(&columns)[Batch::kEdges] = rows.edges.columns;
    Projected<Batch::kEdges>& projected = rows.edges.projected;
    if constexpr (kOnTensorCores) {
      multiply(batch, columns);
#pragma unroll
      for (int u = 0; u < Batch::kEdges; ++u) {
        projected.at[u] = of_warp()[quad_at(0, (u << frame_.log2_groups()) + group(), lane_of_group())].value;
      }
    } else {
#pragma unroll
      for (int u = 0; u < Batch::kEdges; ++u) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) projected.value[u][i] = 0.f;
      }
      share(batch, columns);
#pragma unroll 1
      for (uint32_t column = 0; column < args().count; column += kPairColumns) {
        add_columns<Batch::kEdges>(column, projected);
      }
    }
  }

 private:
  // The compiler does not know it: places that are made of it would otherwise be kept in registers from batch to batch.
  static __device__ int lane() {
    int lane = Frame::lane();
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(lane));
#endif
    return lane;
  }
  __device__ const PairColumnArgs& args() const { return frame_.args.edge.columns; }
  template <class Batch>
  __device__ int num_edges(const Batch&) const {  // of the warp
    return Batch::kEdges << frame_.log2_groups();
  }
  static __device__ int quad_of_lane() { return lane() % kQuads; }
  static __device__ int edge_of(int round) { return round * kEdgesOfRound + lane() / kQuads; }
  __device__ Quad* of_warp() const { return shared_.of_warp[threadIdx.x / kWarpSize]; }
  __device__ int lanes() const { return kWarpSize >> frame_.log2_groups(); }  // of a group
  __device__ int group() const { return lane() >> (kLog2Warp - frame_.log2_groups()); }
  __device__ int lane_of_group() const { return lane() & (lanes() - 1); }

  // The first element of the vector of a lane of a group.
  __device__ uint64_t element_of(uint32_t lane) const {
    const HeadLayout& layout = frame_.args.layout;
    const HeadLane work(layout, Frame::slice(frame_.args), static_cast<int>(lane));
    return uint64_t{HeadVectors<1>(layout, work, 0).index[0]} * kVector;
  }
  __device__ const T* weight_at(uint64_t element, uint32_t column) const {
    return static_cast<const T*>(args().weight) + element * args().count + column;
  }

  // ---- On tensor cores. A pair of tiles has four neighbours of each of eight quads of elements: of quad `group`, in a
  // row of the first tile, eight below, and the same two of the second tile. Quads are those of all lanes of a group,
  // first halves of their vectors first.

  __device__ Row load_fragment(uint32_t tile, uint32_t lane) const {
    const uint32_t quad = tile / 2 * 8 + lane / kQuads, column = lane % kQuads * kPairColumns;
    const uint32_t half = quad / lanes();
    Columns columns[2] = {};
    if (half < 2 && column < args().count) {
      const uint64_t element = element_of(quad % lanes()) + half * 4 + tile % 2 * 2;
      columns[0] = Columns::load(weight_at(element, column));
      columns[1] = Columns::load(weight_at(element + 1, column));
    }
    const auto first = bits_as<uint2>(columns[0].word), second = bits_as<uint2>(columns[1].word);
    return {bits_as<typename Row::Word>(uint4{first.x, second.x, first.y, second.y})};
  }
  // Where in of_warp() four elements of x_e are. Edges that a quarter of a warp writes at once lie in different banks.
  __device__ int quad_at(int half, int edge, int lane) const {
    return half * kQuadsOfHalf + ((edge * lanes() + lane) ^ ((edge >> 1 & 3) << 1));
  }
  template <class Batch>
  __device__ void multiply(const Batch& batch, const Columns (&fetched)[Batch::kEdges]) const {
    __syncwarp();  // what was there has been read
#pragma unroll
    for (int r = 0; r < Batch::kEdges; ++r) {
      if (r * kEdgesOfRound >= num_edges(batch)) break;
#pragma unroll 1
      for (int pair = 0; pair < lanes() / 4; ++pair) {
        float sums[2][4] = {};
        const auto columns = bits_as<Words<2>>(fetched[r].word);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const Row fragment = shared_.weight[2 * pair + k][lane()];
          multiply_add<T>(bits_as<Words<4>>(fragment.word).value, columns.value, sums[k]);
        }
        const int quad = pair * 8 + lane() / kQuads, half = quad >= lanes() ? 1 : 0;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int edge = r * kEdgesOfRound + 2 * quad_of_lane() + k;
          if (edge >= num_edges(batch)) continue;
          of_warp()[quad_at(half, edge, quad & (lanes() - 1))] =
              Quad{{sums[0][k], sums[0][2 + k], sums[1][k], sums[1][2 + k]}};
        }
      }
    }
    __syncwarp();
  }
  template <int kCount>
  struct Words {
    unsigned int value[kCount];
  };

  // ---- In fp32.

  __device__ Row load_column(uint32_t column, uint32_t lane) const {
    float values[kVector] = {};
    if (column < args().count) {
      const uint64_t element = element_of(lane & (lanes() - 1));
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = Fragment<T, 1>::load(weight_at(element + i, column)).value();
    }
    return Row::round(values);
  }
  template <class Batch>
  __device__ void share(const Batch& batch, const Columns (&fetched)[Batch::kEdges]) const {
    __syncwarp();  // what was there has been read
#pragma unroll
    for (int r = 0; r < Batch::kEdges; ++r) {
      if (edge_of(r) >= num_edges(batch)) continue;
      fetched[r].widen(of_warp()[edge_of(r) * kQuads + quad_of_lane()].value);
    }
    __syncwarp();
  }
  // The columns of a quad.
  template <int kEdges>
  __device__ void add_columns(uint32_t column, Projected<kEdges>& projected) const {
    Quad columns[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      columns[u] = of_warp()[((u << frame_.log2_groups()) + group()) * kQuads + column / kPairColumns];
    }
#pragma unroll
    for (int i = 0; i < kPairColumns; ++i) {
      const Row weight = shared_.weight[column + i][lane_of_group()];
#pragma unroll
      for (int u = 0; u < kEdges; ++u) weight.multiply_add_to(columns[u].value[i], projected.value[u]);
    }
  }

  Shared& shared_;
};

}  // namespace halfgnn::cuda
