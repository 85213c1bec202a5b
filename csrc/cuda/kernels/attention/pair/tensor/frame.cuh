// Where a lane of the kernels on tensor cores stands: its head, and the places of that head in rows.
#pragma once

#include "../pass.h"
#include "rows.cuh"

namespace halfgnn::cuda {

template <typename T>
class TensorFrame {
 public:
  __device__ TensorFrame(const PairArgs& args, int head) : args_(args), head_(head) {}

 protected:
  __device__ uint32_t row_bytes() const { return args_.row_elements * static_cast<uint32_t>(sizeof(T)); }
  __device__ int chunks() const { return args_.layout.vectors; }
  __device__ uint32_t head_elements() const { return static_cast<uint32_t>(head_ * chunks() * kTensorChunk); }
  // Of the head in row 0.
  __device__ const char* head_of(const void* rows) const {
    return static_cast<const char*>(rows) + head_elements() * sizeof(T);
  }
  __device__ const char* head_of(const void* rows, uint32_t row) const {
    return head_of(rows) + static_cast<uint64_t>(row) * row_bytes();
  }
  __device__ const char* own_chunk_of(const void* rows, int chunk) const {
    return as_computed(head_of(rows) + chunk * kMaxAccessBytes);
  }
  // Element of a chunk of the head, in a line.
  __device__ int64_t element_of(uint32_t line, int chunk) const {
    return static_cast<int64_t>(line) * args_.row_elements + head_elements() + chunk * kTensorChunk;
  }
  __device__ int64_t statistic_at(uint32_t row) const { return static_cast<int64_t>(row) * args_.layout.heads + head_; }

  __device__ float dropout_scale() const { return args_.dropout.is_on() ? args_.dropout.scale : 1.f; }

  // Of a piece: to its row of `gradient`, whose elements are fp32 if it is wide, or its slot of `partial`.
  __device__ void store_chunk(const Piece& piece, int chunk, void* gradient, bool is_wide, float* partial,
                              const float (&values)[kTensorChunk]) const {
    const int64_t at = element_of(piece.line, chunk);
    if (!piece.is_whole_row) {
      store_rounded(partial + at, values);
    } else if (is_wide) {
      store_rounded(static_cast<float*>(gradient) + at, values);
    } else {
      store_rounded(static_cast<T*>(gradient) + at, values);
    }
  }

  const PairArgs& args_;
  const int head_;
  const TensorLane lane_;
};

// The same, and where the lane gathers rows from.
template <typename T, int kBlocks>
class TensorGather : public TensorFrame<T> {
  using Frame = TensorFrame<T>;
  using OwnRow = TensorOwnRow<T, kBlocks>;
  using Sums = TensorSums<T, kBlocks>;

 public:
  __device__ TensorGather(const PairArgs& args, int head)
      : Frame(args, head),
        by_row_(first_chunks(this->lane_.row_chunk(0, 0))),
        by_pair_(first_chunks(this->lane_.template pair_chunk<kBlocks>(0))) {}

 protected:
  using Frame::args_, Frame::lane_, Frame::own_chunk_of, Frame::row_bytes;

  // The lane's first chunk in the first row, as rows are shared (rows.cuh).
  struct FirstChunks {
    const char* key;
    const char* value;
  };
  template <class Batch>
  __device__ auto rows_for_dots(const Batch& batch, const char* first, const uint32_t (&columns)[2]) const {
    return blocks_of<kBlocks, typename OwnRow::Rows>([&batch, first, &columns, this](int block) {
      return OwnRow::load_rows(batch, first, row_bytes(), columns, lane_, block);
    });
  }
  template <class Batch>
  __device__ auto rows_for_sums(const Batch& batch, const char* first, const uint32_t (&columns)[4]) const {
    return blocks_of<kBlocks, typename Sums::Rows>([&batch, first, &columns, this](int slot) {
      return Sums::load_rows(batch, first, row_bytes(), columns, lane_, slot);
    });
  }

  const FirstChunks by_row_, by_pair_;

 private:
  __device__ FirstChunks first_chunks(int chunk) const {
    return {own_chunk_of(args_.key, chunk), own_chunk_of(args_.value, chunk)};
  }
};

}  // namespace halfgnn::cuda
