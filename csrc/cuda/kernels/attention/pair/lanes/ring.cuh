// Rows and records of edges on their way while others are worked on, of GATv2's pass to sources with records: those of
// two batches, which copies bring to shared memory (core/async_copy.cuh). A row is copied by the lane that reads it. Of
// records a slice needs pieces of 16 bytes, each of which some lane copies, so that a batch's take one instruction.
// Therefore lanes wait for one another before they read them and before the next copies.
#pragma once

#include "../../../core/async_copy.cuh"
#include "rows.cuh"

namespace halfgnn::cuda {

constexpr int kPairStages = 2;

// Of kernels that have none.
struct NoRing {
  struct Shared {};
  template <class Frame>
  __device__ NoRing(const Frame&, Shared&) {}
};

template <class Config>
class PairRing {
  using Row = typename Config::Row;
  using Frame = PairFrame<Config>;
  static constexpr int kUnroll = Config::kUnroll;
  static constexpr int kPiece = kMaxAccessBytes;
  // Of the records of one edge of every group. A slice has the factors of h heads, 8 h bytes, and at most l signs,
  // where l lanes share an edge and h <= l. That is at most 3, 5, 10 and 19 pieces for l = 4, 8, 16 and 32 (all layouts
  // of up to 80 heads, counted), of 8, 4, 2 edges and one.
  static constexpr int kRecordBytes = 8 * 3 * kPiece;

 public:
  struct Stage {
    Row rows[kUnroll][Config::kThreads];
    alignas(kPiece) char records[kUnroll][kRecordBytes];
  };
  struct Shared {
    Stage stages[kPairStages];
  };

  __device__ PairRing(const Frame& frame, Shared& shared)
      : group_(frame.work.group),
        groups_(kept(1 << frame.log2_groups())),
        row_bytes_(kept(frame.args.row_elements * sizeof(typename Config::Element))),
        record_bytes_(kept(frame.args.edge_records.bytes)),
        stages_(shared.stages),
        stage_(0) {
    const HeadLayout& layout = frame.args.layout;
    // Pieces of a slice's factors, and those of its signs that are not among them.
    const int head = frame.slice(frame.args) << layout.log2_heads;
    const int end = min(head + (1 << layout.log2_heads), layout.heads);
    const int signs = static_cast<int>(frame.args.edge_records.signs_at);
    const int first_factors = head * kFactorBytes / kPiece, after_factors = (end * kFactorBytes - 1) / kPiece + 1;
    const int first_signs = max((signs + head * layout.vectors) / kPiece, after_factors);
    const int after_signs = max((signs + end * layout.vectors - 1) / kPiece + 1, first_signs);
    const int skipped = first_signs - after_factors, pieces = after_signs - first_factors - skipped;
    const auto in_stage = [&](int byte) {
      const int piece = byte / kPiece - first_factors - (byte / kPiece < after_factors ? 0 : skipped);
      return (group_ * pieces + piece) * kPiece + byte % kPiece;
    };
    factors_ = in_stage(frame.work.read(layout) * kFactorBytes);
    signs_ = in_stage(signs + static_cast<int>(HeadVectors<1>(layout, frame.work, 0).index[0]));
    // Of a batch's records by one copy of each lane, if they are enough, or else of one edge of each group.
    const int lane = frame.lane(), log2_groups = frame.log2_groups();
    const bool at_once = kUnroll * groups_ * pieces <= kWarpSize;
    at_once_ = kept(at_once) != 0;
    copied_place_ = static_cast<int>(static_cast<uint32_t>(lane) / static_cast<uint32_t>(pieces));
    has_copy_ = copied_place_ < (at_once ? kUnroll * groups_ : groups_);
    const int copied_piece = lane - copied_place_ * pieces, piece = copied_piece + first_factors;
    const int u = copied_place_ >> log2_groups, group = copied_place_ & (groups_ - 1);
    copy_to_ = u * kRecordBytes + (group * pieces + copied_piece) * kPiece;
    copy_from_ = as_computed(frame.args.edge_records.data + (piece < after_factors ? piece : piece + skipped) * kPiece);
  }

  // The stage whose batch is the next one: to be used, then to be filled with the batch after those on their way.
  __device__ void turn() { stage_ ^= 1; }
  __device__ int step() const { return kUnroll * groups_; }

  // Copies of the batch's rows and records; zeros, of places past the last edge.
  template <bool kFull>
  __device__ void request(const PairChunk& chunk, int start, const char* first_row) {
    Stage& stage = stages_[stage_];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int place = start + group_ + u * groups_;
      const uint32_t column = __shfl_sync(kFullMask, chunk.column, place);
      const char* const row = first_row + wide_product(column, row_bytes_);
      copy_async(&stage.rows[u][threadIdx.x], row, true, kFull || place < chunk.count);
    }
    copy_records<kFull>(chunk, start, stage, 0);
    if (at_once_) return;
#pragma unroll
    for (int u = 1; u < kUnroll; ++u) copy_records<kFull>(chunk, start + u * groups_, stage, u);
  }

  // Once they have arrived, for all lanes: those of the lane.
  template <class Factors>
  __device__ void take(PairRows<Config, kUnroll>& rows, Factors& factors) const {
    const Stage& stage = stages_[stage_];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      rows.keys[u][0] = stage.rows[u][threadIdx.x];
      const float2 both = *reinterpret_cast<const float2*>(stage.records[u] + factors_);
      factors.value[u] = both.x;
      factors.key[u] = both.y;
      rows.signs[u] = *reinterpret_cast<const unsigned char*>(stage.records[u] + signs_);
    }
  }

 private:
  static constexpr int kFactorBytes = sizeof(float2);

  template <bool kFull>
  __device__ void copy_records(const PairChunk& chunk, int start, Stage& stage, int u) {
    const int place = start + copied_place_;
    const uint32_t edge = __shfl_sync(kFullMask, chunk.edge, place);
    char* const to = stage.records[u] + copy_to_;
    copy_async(to, copy_from_ + wide_product(edge, record_bytes_), has_copy_, kFull || place < chunk.count);
  }
  const int group_, groups_;
  const uint32_t row_bytes_, record_bytes_;
  Stage (&stages_)[kPairStages];
  int stage_;
  int factors_, signs_;  // of the lane, in the records of a stage
  int copied_place_, copy_to_;
  bool at_once_, has_copy_;
  const char* copy_from_;
};

}  // namespace halfgnn::cuda
