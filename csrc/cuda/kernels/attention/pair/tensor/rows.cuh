// Rows of a batch of 16 edges as fragments of core/mma.cuh, for dot attention on tensor cores.
//
// A row of one head is cut into chunks of 16 bytes: 8 elements, of which each lane loads some chunks as they lie. There
// are two ways to share the rows of 16 edges among the lanes 4 g + t of a warp:
//
//   by rows   edges g and g + 8, chunks t, t + 4, ...   dots with the row's own key: the four words of a chunk are a
//             fragment of a as they are. Rows g and g + 8 of that are the same edge: its words 0 and 2, which belong to
//             words 0 and 2 of the own key in the even columns of b, and its words 1 and 3, which belong to those in
//             the odd columns. Odd g load the other of two chunks, so that these belong to other words: four columns
//             are different, and lanes 4 g + t have both sums if g and t are both even or both odd. That elements come
//             in another order does not matter.
//   by pairs  edges 2 t, 2 t + 1, 2 t + 8, 2 t + 9, chunks g, 8 + (g ^ 4)   sums of factor * row: words of two edges at
//             the same place are interleaved, which makes fragments of the transpose. A block is 8 chunks. Factors
//             enter as two elements, value and what rounding it lost, in the two columns that lanes t of block t have
//             of each sum; its other columns are zero. So lanes 4 g + t add up the chunk of g in block t, and all
//             blocks share registers. Odd t load the other of two blocks, and their factors are in its columns.
//
// Zeros times a row that is not finite are nan. A sum that is not finite is therefore made again, with careful batches.
#pragma once

#include "../../../core/mma.cuh"
#include "../../../core/running_sum.cuh"
#include "../../../core/vector.cuh"
#include "../../../plan/tensor_cores.h"
#include "../../shared/attention.cuh"
#include "batch.cuh"

namespace halfgnn::cuda {

constexpr int kTensorChunk = 8;  // elements
constexpr int kTensorWarps = 1;
constexpr int kTensorThreads = kTensorWarps * kWarpSize;
// Edges that are summed up on tensor cores before they join the total: these cut off what they cannot hold.
constexpr uint32_t kTensorRun = 256;
// Factors are brought to at most this size before they are split: what rounding loses stays a normal number of fp16.
constexpr float kTensorFactor = 16384.f;

// The row's own key or value, and dots with it.
template <typename T, int kBlocks>
class TensorOwnRow {
  // Of one block: the words of chunks t and t + 4 that meet the lane's column.
  struct Block {
    unsigned int words[2][2];
  };

 public:
  // row: of one head.
  __device__ void load(const char* row, int chunks, const TensorLane& lane) {
    const char* const words = row + lane.t * kMaxAccessBytes + lane.group % 2 * sizeof(unsigned int);
    const int first = lane.group / 2 % 2;  // of odd groups' chunks
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) blocks_[block] = load_block(words, block, first, chunks - lane.t);
  }

  // Of one block of the rows.
  struct Rows {
    uint4 words[2][2];
  };
  // first: the lane's first chunk in the first row. Loads only: the first use waits.
  template <class Batch>
  __device__ static Rows load_rows(const Batch& batch, const char* first, uint32_t row_bytes,
                                   const uint32_t (&columns)[2], const TensorLane& lane, int block) {
    Rows rows;
    const int second = (lane.row_chunk(0, 1) - lane.row_chunk(0, 0)) * kMaxAccessBytes;
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) {
      const char* row = as_computed(first) + static_cast<uint64_t>(columns[i]) * row_bytes;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        rows.words[i][j] =
            batch.load(row + j * second + 8 * block * kMaxAccessBytes, lane.group + 8 * i, lane.row_chunk(block, j));
      }
    }
    return rows;
  }

  // Parts of the dots of edges group and group + 8: see TensorLane::of_own_group().
  struct Dots {
    float part[2][4] = {};
    __device__ float of_edge(int i) const { return part[i][0] + part[i][3]; }
  };
  template <class Batch>
  __device__ void add_dots(const Batch&, const Rows& rows, int block, Dots& dots) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < Batch::kHalves; ++i) {
        const uint4& words = rows.words[i][j];
        multiply_add<T>({words.x, words.y, words.z, words.w}, blocks_[block].words[j], dots.part[i]);
      }
    }
  }

 private:
  // words: of the lane's chunk with j = 0. first: the j that comes first. chunks: of the row, after that.
  static __device__ Block load_block(const char* words, int block, int first, int chunks) {
    Block own{};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int chunk = 8 * block + 4 * (j ^ first);
      if (chunk >= chunks) continue;
      const auto* both = reinterpret_cast<const unsigned int*>(as_computed(words) + chunk * kMaxAccessBytes);
      own.words[j][0] = __ldg(both);
      own.words[j][1] = __ldg(both + 2);
    }
    return own;
  }

  Block blocks_[kBlocks];
};

// From lanes' values of different edges.
inline __device__ float max_over_groups(float value) {
#pragma unroll
  for (int bit = 4; bit < kWarpSize; bit *= 2) value = fmaxf(value, __shfl_xor_sync(kFullMask, value, bit));
  return value;
}

// Of two pairs of elements: their first ones, or their second ones.
#ifdef __CUDA_ARCH__
inline __device__ unsigned int lower_halves(unsigned int x, unsigned int y) { return __byte_perm(x, y, 0x5410); }
inline __device__ unsigned int upper_halves(unsigned int x, unsigned int y) { return __byte_perm(x, y, 0x7632); }
#else
inline __device__ unsigned int lower_halves(unsigned int x, unsigned int y) { return (x & 0xffffu) | y << 16; }
inline __device__ unsigned int upper_halves(unsigned int x, unsigned int y) { return x >> 16 | (y & 0xffff0000u); }
#endif

// Factors of a batch as a fragment of b: column n has the value for even n, and what rounding lost for odd n.
template <typename T>
struct TensorFactors {
  unsigned int b[2];

  // factors: of edges group and group + 8, at most kTensorFactor or so.
  template <class Batch>
  __device__ TensorFactors(const Batch&, const float (&factors)[2]) : b{0, 0} {
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) b[i] = transpose_8x8(pair_of(factors[i]));
  }

  // The rounded value, and what rounding it lost.
  static __device__ unsigned int pair_of(float factor) {
    const float value = Convert<T>::widen(Convert<T>::round(factor));
    return bits_as<unsigned int>(Convert<T>::round(value, factor - value));
  }
};

// If the rows are infinite, the sum is. What rounding factors lost makes nan then, or inf of the other sign.
inline __device__ float joined_sum(float sum, float lost) { return fabsf(sum) <= FLT_MAX ? sum + lost : sum; }

// Sums of factor * row in fragments of core/mma.cuh, over the edges of a row: of each fragment a lane has two elements,
// and of each of them what belongs to the rounded factors and what to the rest.
template <int kFragments>
class TensorFragmentSums {
 public:
  static constexpr int kElements = 2 * kFragments;
  // Totals of the runs before the one that the lane is in.
  using Totals = float[kElements][kTensorThreads];

  __device__ explicit TensorFragmentSums(Totals& totals) : totals_(totals) {}

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum_[m][i] = 0.f;
    }
  }
  __device__ void multiply(float factor) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum_[m][i] *= factor;
    }
  }

  // The run joins the total, which is multiplied by `rescale` first; what that lost starts the next run. Totals are
  // `unit` times as large as runs, a power of two.
  __device__ void end_run(bool has_total, float rescale, float unit) {
    const float inverse = 1.f / unit;
    float values[kElements];
    load(values);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      float run = values[i] * unit, total = totals_[i][threadIdx.x];
      cuda::end_run(has_total, rescale, total, run);
      totals_[i][threadIdx.x] = total;
      sum_[i / 2][2 * (i % 2)] = run * inverse;
      sum_[i / 2][2 * (i % 2) + 1] = 0.f;
    }
  }
  // At the row's end: the lane's own elements, as large as totals.
  __device__ void finish(bool has_total, float rescale, float unit, float (&values)[kElements]) const {
    load(values);
#pragma unroll
    for (int i = 0; i < kElements; ++i) values[i] *= unit;
    if (!has_total) return;
#pragma unroll
    for (int i = 0; i < kElements; ++i) values[i] = fmaf(totals_[i][threadIdx.x], rescale, values[i]);
  }

 protected:
  float sum_[kFragments][4];

 private:
  __device__ void load(float (&values)[kElements]) const {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      values[i] = joined_sum(sum_[i / 2][2 * (i % 2)], sum_[i / 2][2 * (i % 2) + 1]);
    }
  }

  Totals& totals_;
};

// Sums of factor * row over the edges of a row. Each lane adds up one chunk; those with t >= kBlocks, one of another
// lane.
template <typename T, int kBlocks>
class TensorSums : public TensorFragmentSums<kTensorChunk / 2> {
 public:
  using TensorFragmentSums<kTensorChunk / 2>::TensorFragmentSums;

  // Of the row: the chunk that the lane adds up.
  __device__ static int own_block(const TensorLane& lane) { return lane.t % kBlocks; }
  __device__ static int own_chunk(const TensorLane& lane) {
    return TensorLane::pair_chunk(own_block(lane), lane.group);
  }
  __device__ static bool writes(const TensorLane& lane, int chunks) {
    return lane.t < kBlocks && own_chunk(lane) < chunks;
  }

  // Of one block of the rows, by the slot in which the lane loads it.
  struct Rows {
    uint4 words[4];
  };
  // first: the lane's first chunk in the first row. Loads only: the first use waits.
  template <class Batch>
  __device__ static Rows load_rows(const Batch& batch, const char* first, uint32_t row_bytes,
                                   const uint32_t (&columns)[4], const TensorLane& lane, int slot) {
    Rows rows{};
    if (!batch.sums(lane.pair_block<kBlocks>(slot))) return rows;
    const int chunk = lane.pair_chunk<kBlocks>(slot), further = chunk - lane.pair_chunk<kBlocks>(0);
#pragma unroll
    for (int i = 0; i < 2 * Batch::kHalves; ++i) {
      const char* row = as_computed(first) + static_cast<uint64_t>(columns[i]) * row_bytes;
      const int place = 2 * lane.t + i % 2 + 8 * (i / 2);
      rows.words[i] = batch.load(row + further * kMaxAccessBytes, place, chunk);
    }
    return rows;
  }

  // sums += factors * rows
  __device__ void add(const Rows& rows, const TensorFactors<T>& factors, const TensorLane& lane, int slot) {
    // Of the lanes that have this column, and of the edges of these factors.
    const bool is_own = lane.group / 2 % kBlocks == lane.pair_block<kBlocks>(slot);
    const unsigned int b[2] = {is_own ? factors.b[0] : 0, is_own ? factors.b[1] : 0};
    add_pair(rows.words, &uint4::x, b, sum_[0]);
    add_pair(rows.words, &uint4::y, b, sum_[1]);
    add_pair(rows.words, &uint4::z, b, sum_[2]);
    add_pair(rows.words, &uint4::w, b, sum_[3]);
  }

 private:
  // Two neighbouring elements of each chunk.
  __device__ static void add_pair(const uint4 (&words)[4], unsigned int uint4::* member, const unsigned int (&b)[2],
                                  float (&sum)[4]) {
    const unsigned int x0 = words[0].*member, x1 = words[1].*member, y0 = words[2].*member, y1 = words[3].*member;
    multiply_add<T>({lower_halves(x0, x1), upper_halves(x0, x1), lower_halves(y0, y1), upper_halves(y0, y1)}, b, sum);
  }
};

}  // namespace halfgnn::cuda
