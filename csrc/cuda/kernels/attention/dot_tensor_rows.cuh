// Rows of a batch of 16 edges as fragments of core/mma.cuh, for dot attention on tensor cores.
//
// A row of one head is cut into chunks of 16 bytes: 8 elements, of which each lane loads some chunks as they lie. There
// are two ways to share the rows of 16 edges among the lanes 4 g + t of a warp:
//
//   by rows   edges g and g + 8, chunks t, t + 4, ...   dots with the row's own key: the four words of a chunk are a
//             fragment of a as they are. Rows g and g + 8 of that are the same edge: its words 0 and 2, which belong to
//             words 0 and 2 of the own key in the even columns of b, and its words 1 and 3, which belong to those in
//             the odd columns. Lanes 4 g + t have both sums. That elements come in another order does not matter.
//   by pairs  edges 2 t, 2 t + 1, 2 t + 8, 2 t + 9, chunks g, g + 8, ...   sums of factor * row: words of two edges
//   that
//             lie at the same place are interleaved, which makes fragments of the transpose. Sums of chunk g are in
//             all lanes 4 g + t then.
//
// Factors enter as two elements, value and what rounding it lost: the two columns that a lane has of each sum.
#pragma once

#include "../core/mma.cuh"
#include "../core/running_sum.cuh"
#include "../core/vector.cuh"
#include "../plan/tensor_cores.h"
#include "attention.cuh"

namespace halfgnn::cuda {

constexpr int kTensorEdges = 16;  // of a batch
constexpr int kTensorChunk = 8;   // elements
constexpr int kTensorWarps = 4;
constexpr int kTensorThreads = kTensorWarps * kWarpSize;
// Edges that are summed up on tensor cores before they join the total: these cut off what they cannot hold.
constexpr uint32_t kTensorRun = 256;
// Factors are brought to at most this size before they are split: what rounding loses stays a normal number of fp16.
constexpr float kTensorFactor = 16384.f;

struct TensorLane {
  int lane, group, t;
  __device__ TensorLane() : lane(static_cast<int>(threadIdx.x & (kWarpSize - 1))), group(lane / 4), t(lane % 4) {}
};

// Places of a batch past the last edge are read as that edge, or not at all.
template <bool kFull>
class TensorBatch {
 public:
  const int start;   // in the chunk of ids
  const int count;   // edges, at most kTensorEdges if it is not full
  const int chunks;  // of a row

  __device__ TensorBatch(int start, int count, int chunks) : start(start), count(count), chunks(chunks) {}

  __device__ bool has(int place) const { return kFull || place < count; }
  // The columns of the edges that a lane loads.
  __device__ void columns_by_row(uint32_t column, const TensorLane& lane, uint32_t (&columns)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) columns[i] = read(column, lane.group + 8 * i);
  }
  __device__ void columns_by_pair(uint32_t column, const TensorLane& lane, uint32_t (&columns)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) columns[i] = read(column, 2 * lane.t + i % 2 + 8 * (i / 2));
  }
  // A chunk, or zeros if it is past the end of the row or there is no such edge.
  __device__ uint4 load(const char* source, int place, int chunk) const {
    uint4 words = {0, 0, 0, 0};
    if (kFull || (place < count && chunk < chunks)) words = __ldg(reinterpret_cast<const uint4*>(source));
    return words;
  }

 private:
  __device__ uint32_t read(uint32_t column, int place) const {
    return __shfl_sync(kFullMask, column, start + (has(place) ? place : 0));
  }
};

// The row's own key or value, and dots with it.
template <typename T, int kBlocks>
class TensorOwnRow {
  static constexpr int kLoads = 2 * kBlocks;

 public:
  // row: of one head.
  __device__ void load(const char* row, int chunks, const TensorLane& lane) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int chunk = 4 * j + lane.t;
      uint4 words = {0, 0, 0, 0};
      if (chunk < chunks) words = __ldg(reinterpret_cast<const uint4*>(row + chunk * kMaxAccessBytes));
      const bool is_even = lane.group % 2 == 0;
      own_[j][0] = is_even ? words.x : words.y;
      own_[j][1] = is_even ? words.z : words.w;
    }
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
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const char* row = first + static_cast<uint64_t>(columns[i]) * row_bytes;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int chunk = 8 * block + 4 * j;  // of lanes with t = 0
        rows.words[i][j] = batch.load(row + chunk * kMaxAccessBytes, lane.group + 8 * i, chunk + lane.t);
      }
    }
    return rows;
  }

  // Parts of the dots of edges group and group + 8.
  struct Dots {
    float part[2][4] = {};
    __device__ float of_edge(int i) const { return part[i][0] + part[i][3]; }
  };
  __device__ void add_dots(const Rows& rows, int block, Dots& dots) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4& words = rows.words[i][j];
        multiply_add<T>({words.x, words.y, words.z, words.w}, own_[2 * block + j], dots.part[i]);
      }
    }
  }

 private:
  unsigned int own_[kLoads][2];
};

// From lanes' values of different edges.
inline __device__ float max_over_groups(float value) {
#pragma unroll
  for (int bit = 4; bit < kWarpSize; bit *= 2) value = fmaxf(value, __shfl_xor_sync(kFullMask, value, bit));
  return value;
}

// Factors of a batch as a fragment of b: column n has the value for even n, and what rounding lost for odd n.
template <typename T>
struct TensorFactors {
  unsigned int b[2];

  // factors: of edges group and group + 8, at most kTensorFactor or so.
  __device__ explicit TensorFactors(const float (&factors)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float value = Convert<T>::widen(Convert<T>::round(factors[i]));
      b[i] = transpose_8x8(bits_as<unsigned int>(Convert<T>::round(value, factors[i] - value)));
    }
  }
};

// Sums of factor * row over the edges of a row. Lanes 4 g + t have the same sums of elements of chunks g, g + 8, ...;
// each is responsible for one of these chunks.
template <typename T, int kBlocks>
class TensorSums {
 public:
  static constexpr int kElements = kTensorChunk;
  // Totals of the runs before the one that the lane is in.
  using Totals = float[kElements][kTensorThreads];

  __device__ explicit TensorSums(Totals& totals) : totals_(totals) {}

  // Of a block of the row: the chunk that the lane is responsible for.
  __device__ static int own_block(const TensorLane& lane) { return lane.t % kBlocks; }
  __device__ static int own_chunk(const TensorLane& lane) { return 8 * own_block(lane) + lane.group; }
  __device__ static bool writes(const TensorLane& lane, int chunks) {
    return lane.t < kBlocks && own_chunk(lane) < chunks;
  }

  __device__ void clear() {
#pragma unroll
    for (int p = 0; p < kBlocks; ++p) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum_[p][m][i] = 0.f;
      }
    }
  }
  __device__ void multiply(float factor) {
#pragma unroll
    for (int p = 0; p < kBlocks; ++p) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum_[p][m][i] *= factor;
      }
    }
  }

  // Of one block of the rows.
  struct Rows {
    uint4 words[4];
  };
  // first: the lane's first chunk in the first row. Loads only: the first use waits.
  template <class Batch>
  __device__ static Rows load_rows(const Batch& batch, const char* first, uint32_t row_bytes,
                                   const uint32_t (&columns)[4], const TensorLane& lane, int block) {
    Rows rows;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const char* row = first + static_cast<uint64_t>(columns[i]) * row_bytes;
      const int place = 2 * lane.t + i % 2 + 8 * (i / 2), chunk = 8 * block + lane.group;
      rows.words[i] = batch.load(row + 8 * block * kMaxAccessBytes, place, chunk);
    }
    return rows;
  }

  // sums += factors * rows
  __device__ void add(const Rows& rows, const TensorFactors<T>& factors, int block) {
    add_pair(rows.words, &uint4::x, factors, sum_[block][0]);
    add_pair(rows.words, &uint4::y, factors, sum_[block][1]);
    add_pair(rows.words, &uint4::z, factors, sum_[block][2]);
    add_pair(rows.words, &uint4::w, factors, sum_[block][3]);
  }

  // The lane's own chunk.
  __device__ void load(const TensorLane& lane, float (&values)[kElements]) const {
#pragma unroll
    for (int p = 0; p < kBlocks; ++p) {
      const bool is_own = p == 0 || p == own_block(lane);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float first = joined(sum_[p][m][0], sum_[p][m][1]), second = joined(sum_[p][m][2], sum_[p][m][3]);
        values[2 * m] = is_own ? first : values[2 * m];
        values[2 * m + 1] = is_own ? second : values[2 * m + 1];
      }
    }
  }
  __device__ void store(const TensorLane& lane, const float (&values)[kElements]) {
#pragma unroll
    for (int p = 0; p < kBlocks; ++p) {
      const bool is_own = p == own_block(lane);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        sum_[p][m][0] = is_own ? values[2 * m] : 0.f;
        sum_[p][m][2] = is_own ? values[2 * m + 1] : 0.f;
        sum_[p][m][1] = sum_[p][m][3] = 0.f;
      }
    }
  }

  // The run joins the total, which is multiplied by `rescale` first; what that lost starts the next run. Totals are
  // `unit` times as large as runs.
  __device__ void end_run(const TensorLane& lane, bool has_total, float rescale, float unit) {
    float values[kElements];
    load(lane, values);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      float run = values[i] * unit, total = totals_[i][threadIdx.x];
      cuda::end_run(has_total, rescale, total, run);
      totals_[i][threadIdx.x] = total;
      values[i] = run / unit;
    }
    store(lane, values);
  }
  // At the row's end: the lane's own chunk, as large as totals.
  __device__ void finish(const TensorLane& lane, bool has_total, float rescale, float unit,
                         float (&values)[kElements]) const {
    load(lane, values);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      values[i] *= unit;
      if (has_total) values[i] = fmaf(totals_[i][threadIdx.x], rescale, values[i]);
    }
  }

 private:
  // If the rows are infinite, the sum is. What rounding factors lost makes nan then, or inf of the other sign.
  static __device__ float joined(float sum, float lost) { return fabsf(sum) <= FLT_MAX ? sum + lost : sum; }
  // Two neighbouring elements of each chunk.
  __device__ static void add_pair(const uint4 (&words)[4], unsigned int uint4::* member,
                                  const TensorFactors<T>& factors, float (&sum)[4]) {
    const unsigned int x0 = words[0].*member, x1 = words[1].*member, y0 = words[2].*member, y1 = words[3].*member;
    multiply_add<T>({lower(x0, x1), upper(x0, x1), lower(y0, y1), upper(y0, y1)}, factors.b, sum);
  }
  // Of two pairs: their first elements, or their second ones.
#ifdef __CUDA_ARCH__
  __device__ static unsigned int lower(unsigned int x, unsigned int y) { return __byte_perm(x, y, 0x5410); }
  __device__ static unsigned int upper(unsigned int x, unsigned int y) { return __byte_perm(x, y, 0x7632); }
#else
  __device__ static unsigned int lower(unsigned int x, unsigned int y) { return (x & 0xffffu) | y << 16; }
  __device__ static unsigned int upper(unsigned int x, unsigned int y) { return x >> 16 | (y & 0xffff0000u); }
#endif

  float sum_[kBlocks][4][4];
  Totals& totals_;
};

}  // namespace halfgnn::cuda
