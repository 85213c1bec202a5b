// The walk of a warp over a row or a piece of one, of one head, 16 edges at a time: for the kernels on tensor cores
// (sm_80 and later), for heads of whole chunks of 16 bytes. They stand beside those of ../lanes: the same passes,
// arguments and results.
//
// Dots come from tensor cores, and sums of factor * row are added up on them (rows.cuh). Between the two, lanes 4 g + t
// work out the factors of edges g and g + 8: forward.cuh, backward.cuh.
#pragma once

#include <type_traits>

#include "../../../core/row_units.cuh"
#include "../epilogue.cuh"
#include "config.cuh"
#include "edges.cuh"

namespace halfgnn::cuda {

template <TensorBatchKind kScore>
using KindOfBatch = std::integral_constant<TensorBatchKind, kScore>;

// Pass: the class that derives from this one. It has start_row(piece), add_batch(batch, column), end_run(), and
// store(piece), which returns false if the row is to be walked again, for one block of sums after the other; then all
// but the last call return false.
template <class Config, class Pass>
class TensorWalk : TensorGather<typename Config::Element, Config::kBlocks> {
 protected:
  using T = typename Config::Element;
  using Frame = TensorGather<T, Config::kBlocks>;
  using OwnRow = TensorOwnRow<T, Config::kBlocks>;
  using Edges = typename Config::Edges;
  using Sums = TensorSums<T, Config::kBlocks>;
  using Epilogue = PairEpilogue<T, typename Config::Terms>;
  using Frame::args_, Frame::head_, Frame::lane_, Frame::by_row_, Frame::by_pair_;
  using Frame::chunks, Frame::head_elements, Frame::head_of, Frame::statistic_at, Frame::dropout_scale;
  using Frame::rows_for_dots, Frame::rows_for_sums;

  // Of edges group and group + 8: dots, then factors.
  struct Factors {
    float value[2] = {0.f, 0.f};
  };

 public:
  // Of a block.
  struct Shared {
    typename Edges::Shared edges;
  };

  // The whole warp takes part, with one piece.
  __device__ void run(const Piece& piece) {
    sum_block_ = kAllBlocks;
    while (true) {
      // Read anew: otherwise the compiler keeps what follows from the piece in registers, for when it is walked again.
      const Piece again{as_computed(piece.row), as_computed(piece.begin), as_computed(piece.end),
                        as_computed(piece.line), piece.is_whole_row};
      own_key_.load(head_of(args_.own_key, again.row), chunks(), lane_);
      has_total_ = false;
      pass().start_row(again);
      edges_.start_row(again.row);
      walk(again);
      if (pass().store(again) || ++sum_block_ == Config::kBlocks) return;
    }
  }

 protected:
  __device__ TensorWalk(const PairArgs& args, int head, Shared& shared)
      : Frame(args, head), edges_(args, head, shared.edges), ids_{0, 0}, ids_begin_(~0u) {}

  // Element of the lane's own chunk, in a row.
  __device__ uint32_t own_element() const { return head_elements() + Sums::own_chunk(lane_) * kTensorChunk; }
  __device__ bool writes() const {
    return Sums::writes(lane_, chunks()) && (sum_block_ == kAllBlocks || sum_block_ == Sums::own_block(lane_));
  }

  // own: the key or the value.
  template <class Batch, class Blocks>
  __device__ typename OwnRow::Dots dots_of(const Batch& batch, const OwnRow& own, Blocks& blocks) const {
    typename OwnRow::Dots dots;
    blocks.for_each([&](const auto& rows, int block) { own.add_dots(batch, rows, block, dots); });
    return dots;
  }
  template <class Batch, class Held>
  __device__ void find_logits(const Batch& batch, const typename OwnRow::Dots& dots, const Held& held,
                              float (&logits)[2]) const {
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) logits[i] = lane_.of_own_group(args_.logit.linear * dots.of_edge(i));
    edges_.add_to_logits(batch, held, logits);
  }
  template <class Batch>
  __device__ bool is_dropped(const Batch& batch, int i) const {
    return (dropped_ >> (batch.start() + lane_.group + 8 * i) & 1) != 0;
  }

  // ---- The end of a row.

  // Whether the sums of fast batches can be trusted.
  template <int kCount>
  __device__ bool accepts(const float (&values)[kCount]) const {
    if (sum_block_ != kAllBlocks) return true;
    float sum = values[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) sum += values[i];
    return __all_sync(kFullMask, fabsf(sum) <= FLT_MAX);
  }
  static __device__ bool accepts(const NoTensorValues&) { return true; }

  int sum_block_;  // that sums take, or all of them
  // Of the row.
  OwnRow own_key_;
  Edges edges_;
  bool has_total_;

 private:
  __device__ Pass& pass() { return static_cast<Pass&>(*this); }
  __device__ bool has_whole_blocks() const { return chunks() == Config::kBlocks * (kTensorBlock / kTensorChunk); }

  __device__ void walk(const Piece& piece) {
    if (piece.is_empty()) return;
    if (ids_begin_ != piece.begin) load_ids(piece.begin);
    uint32_t begin = piece.begin;
    while (true) {
      const uint32_t column = ids_.column, edge = ids_.edge, left = piece.end - begin;
      const int count = left < kWarpSize ? static_cast<int>(left) : kWarpSize;
      load_ids(begin + count);  // a chunk ahead: the next row starts where this one ends
      draw(edge);
      edges_.start_chunk(edge);
      for (int start = 0; start < count; start += kTensorEdges) add_edges(start, count - start, column);
      if (left <= kWarpSize) break;
      if ((left - 1) % kTensorRun < kWarpSize) {  // counted from the row's end: its first run is the shorter
        pass().end_run();
        has_total_ = true;
      }
      begin += kWarpSize;
    }
    ids_begin_ = piece.end;
  }
  __device__ void load_ids(uint32_t begin) {
    ids_.load(args_.units.rows, args_.columns, args_.edge_ids, true, begin, lane_.lane);
  }
  // A bit for each edge of a chunk. edge: the lane's.
  __device__ void draw(uint32_t edge) {
    dropped_ = 0;
    if (!args_.dropout.is_on()) return;
    const auto quad = static_cast<uint32_t>(head_) >> 2;
    dropped_ = __ballot_sync(kFullMask, (args_.dropout.dropped(edge, quad) >> (head_ & 3) & 1) != 0);
  }

  __device__ void add_edges(int start, int left, uint32_t column) {
    const auto add = [&](auto kind) {
      pass().add_batch(TensorBatch<decltype(kind)::value>(start, left, chunks(), sum_block_), column);
    };
    const bool is_careful = sum_block_ != kAllBlocks || !has_whole_blocks();
    if (!is_careful && left >= kTensorEdges) {
      add(KindOfBatch<TensorBatchKind::kFull>{});
    } else if (!is_careful && left <= kTensorEdges / 2) {
      add(KindOfBatch<TensorBatchKind::kHalf>{});
    } else {
      add(KindOfBatch<TensorBatchKind::kCareful>{});
    }
  }

  ChunkIds ids_;  // of the next chunk
  uint32_t ids_begin_;
  uint32_t dropped_;
};

}  // namespace halfgnn::cuda
