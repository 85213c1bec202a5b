// Batches of 16 edges or 8 for attention on tensor cores: which rows and chunks lanes load (rows.cuh), and
// how many of them at once. The whole warp takes part in all of it.
#pragma once

#include "../../../core/launch.cuh"
#include "../../../core/vector.cuh"

namespace halfgnn::cuda {

constexpr int kTensorEdges = 16;  // of a batch

// Where a lane stands, and which chunks of rows it loads (rows.cuh). A cache line has 8 chunks, in as many banks: lanes
// that the L1 cache serves at the same time, eight neighbours, take as many banks as they can.
struct TensorLane {
  int lane, group, t;
  __device__ TensorLane() : lane(static_cast<int>(threadIdx.x & (kWarpSize - 1))), group(lane / 4), t(lane % 4) {}

  // By rows: the lane's j-th chunk of a block, of two. Odd groups start with the second one.
  __device__ int row_chunk(int block, int j) const { return 8 * block + 4 * (j ^ (group & 1)) + t; }
  // Dots of the lane's group, from those that it has of even groups, if t is even, or of odd ones.
  __device__ float of_own_group(float value) const {
    const float other = __shfl_xor_sync(kFullMask, value, 1);
    return ((group ^ t) & 1) != 0 ? other : value;
  }

  // By pairs: the block that a lane loads `slot`-th, and its chunk. With two blocks, odd t start with the second one,
  // in which groups have chunks that are in other banks.
  template <int kBlocks>
  __device__ int pair_block(int slot) const {
    return kBlocks > 1 ? slot ^ (t & 1) : slot;
  }
  __device__ static int pair_chunk(int block, int group) { return 8 * block + (group ^ 4 * block); }
  template <int kBlocks>
  __device__ int pair_chunk(int slot) const {
    return pair_chunk(pair_block<kBlocks>(slot), group);
  }
};

// The same value, of which the compiler knows nothing.
inline __device__ uint32_t as_computed(uint32_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(value));
#endif
  return value;
}

enum class TensorBatchKind {
  kFull,    // 16 edges of whole blocks
  kHalf,    // at most 8 edges of whole blocks. Places past the last edge are read as the first one
  kCareful  // what is past the last edge or chunk, and blocks that are not wanted, are zeros
};

constexpr int kAllBlocks = -1;

template <TensorBatchKind kScore>
class TensorBatch {
 public:
  static constexpr int kHalves = kScore == TensorBatchKind::kHalf ? 1 : 2;  // of 8 edges
  static constexpr bool kIsCareful = kScore == TensorBatchKind::kCareful;

  // start: in the chunk of ids. chunks: of a row. sum_block: that sums take, or all of them.
  __device__ TensorBatch(int start, int count, int chunks, int sum_block)
      : start_(start), count_(count), chunks_(chunks), sum_block_(sum_block) {}

  __device__ int start() const { return start_; }
  __device__ bool has(int place) const { return kScore == TensorBatchKind::kFull || place < count_; }
  // The columns of the edges that a lane loads.
  __device__ void columns_by_row(uint32_t column, const TensorLane& lane, uint32_t (&columns)[2]) const {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) columns[i] = read(column, lane.group + 8 * i);
  }
  __device__ void columns_by_pair(uint32_t column, const TensorLane& lane, uint32_t (&columns)[4]) const {
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) columns[i] = read(column, 2 * lane.t + i % 2 + 8 * (i / 2));
  }
  // What the lane of the edge at this place of the batch has; past the last edge, what lanes past it have.
  template <typename Value>
  __device__ Value at_place(Value value, int place) const {
    return __shfl_sync(kFullMask, value, start_ + place);
  }
  __device__ uint4 load(const char* source, int place, int chunk) const {
    uint4 words = {0, 0, 0, 0};
    if (!kIsCareful || (place < count_ && chunk < chunks_)) words = __ldg(reinterpret_cast<const uint4*>(source));
    return words;
  }
  __device__ bool sums(int block) const { return !kIsCareful || sum_block_ == kAllBlocks || sum_block_ == block; }

 private:
  const int start_, count_, chunks_, sum_block_;

  __device__ uint32_t read(uint32_t column, int place) const {
    return __shfl_sync(kFullMask, column, start_ + (has(place) ? place : 0));
  }
};

// The blocks of a batch's rows, as `load` makes them of a block. All are loaded before something else is done.
template <int kBlocks, class Rows, class Load>
class TensorBlocks {
 public:
  __device__ explicit TensorBlocks(const Load& load) : load_(load) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) rows_[block] = load_(block);
  }
  // Calls use(rows, block).
  template <class Use>
  __device__ void for_each(const Use& use) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) use(rows_[block], block);
  }

 private:
  const Load load_;  // a copy: where it is a reference, kernels take up to 20 registers more
  Rows rows_[kBlocks];
};

template <int kBlocks, class Rows, class Load>
__device__ TensorBlocks<kBlocks, Rows, Load> blocks_of(const Load& load) {
  return TensorBlocks<kBlocks, Rows, Load>(load);
}

}  // namespace halfgnn::cuda
