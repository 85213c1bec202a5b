// A lane of the kernels of dot attention and GATv2 on tensor cores (sm_80 and later), for heads of whole chunks of 16
// bytes. Include only where kernels are instantiated (<attention>_tensor_<type>.cu). It stands beside
// pair/lanes/lane.cuh: the same passes, arguments and results.
//
// A warp walks a row or a piece of one, of one head, 16 edges at a time. Dots come from tensor cores, and sums of
// factor * row are added up on them (rows.cuh). Between the two, lanes 4 g + t work out the factors of edges
// g and g + 8: forward, by softmax with a running maximum (shared/attention.cuh); backward, by the weight and its
// derivative.
#pragma once

#include <type_traits>

#include "../../../core/row_units.cuh"
#include "edges.cuh"
#include "products.cuh"
#include "unit.cuh"

namespace halfgnn::cuda {

template <TensorBatchKind kKind>
using KindOfBatch = std::integral_constant<TensorBatchKind, kKind>;

// ScoreOf: how the logits of an attention come from keys. kTerms: what edges add, to dot attention alone.
template <template <typename, PairPass, int> class ScoreOf, typename T, PairPass kPairPass, int kBlocks,
          TensorTerms kTerms = TensorTerms::kNone>
class PairTensorLane : TensorGather<T, kBlocks, keys_are_values(ScoreOf<T, kPairPass, kBlocks>::kKind, kPairPass)> {
  using Frame = TensorGather<T, kBlocks, keys_are_values(ScoreOf<T, kPairPass, kBlocks>::kKind, kPairPass)>;
  using Frame::args_, Frame::head_, Frame::lane_, Frame::by_row_, Frame::by_pair_, Frame::kKeysAreValues;
  using Frame::chunks, Frame::head_elements, Frame::head_of, Frame::statistic_at, Frame::dropout_scale;
  using Frame::rows_for_dots, Frame::rows_for_sums;
  using Score = ScoreOf<T, kPairPass, kBlocks>;
  using OwnRow = TensorOwnRow<T, kBlocks>;
  using Sums = TensorSums<T, kBlocks>;
  static constexpr bool kIsGatv2 = Score::kKind == PairKind::kGatv2;
  static constexpr bool kForward = kPairPass == PairPass::kForward;
  static constexpr bool kWritesRecords = kPairPass == PairPass::kRecordingDestinations;
  static constexpr bool kToDestinations = kPairPass == PairPass::kDestinations || kWritesRecords;
  static constexpr bool kSumsValues = !kToDestinations;
  static constexpr bool kSumsKeys = !kForward;
  static constexpr bool kHasTerms = kTerms != TensorTerms::kNone;
  static constexpr float kValueUnit = 1 / kTensorFactor;
  using Products = TensorProducts<kIsGatv2 && kSumsKeys, kBlocks>;
  using Edges = TensorEdges<T, kPairPass, kTerms>;
  using ColumnValues = typename Edges::ColumnValues;

 public:
  // Of a block.
  struct Shared : Edges::Shared {
    typename Sums::Totals values, keys;
    float total_weight[kTensorThreads], total_maximum[kTensorThreads];
    typename Products::Shared products;
  };

  __device__ PairTensorLane(const PairArgs& args, int head, Shared& shared)
      : Frame(args, head),
        ids_{0, 0},
        ids_begin_(~0u),
        values_(shared.values),
        keys_(shared.keys),
        score_(head_of(args.logit.attn), chunks(), lane_),
        edges_(args, head, shared),
        products_(shared.products),
        total_weight_(shared.total_weight[threadIdx.x]),
        total_maximum_(shared.total_maximum[threadIdx.x]) {}

  // The whole warp takes part, with one piece.
  __device__ void run(const Piece& piece) {
    sum_block_ = kAllBlocks;
    while (true) {
      // Read anew: otherwise the compiler keeps what follows from the piece in registers, for when it is walked again.
      const Piece again{as_computed(piece.row), as_computed(piece.begin), as_computed(piece.end),
                        as_computed(piece.line), piece.is_whole_row};
      start_row(again);
      walk(again);
      if (store(again) || ++sum_block_ == kBlocks) return;
    }
  }

  // Of GATv2's backward: the whole block takes part, once all rows are done.
  __device__ void write_products(uint32_t block) const {
    products_.write(args_.products + static_cast<int64_t>(block) * args_.row_elements + head_elements(), chunks());
  }

 private:
  // Of edges group and group + 8: dots, then factors.
  struct Factors {
    float value[2] = {0.f, 0.f};
  };

  // Element of the lane's own chunk, in a line.
  __device__ int64_t own_elements(uint32_t line) const { return Frame::element_of(line, Sums::own_chunk(lane_)); }
  __device__ bool writes() const {
    return Sums::writes(lane_, chunks()) && (sum_block_ == kAllBlocks || sum_block_ == Sums::own_block(lane_));
  }
  __device__ bool has_whole_blocks() const { return chunks() == kBlocks * (kTensorBlock / kTensorChunk); }

  // ---- Edges.

  __device__ void start_row(const Piece& piece) {
    score_.load(head_of(args_.own_key, piece.row), chunks(), lane_);
    if constexpr (!kForward) own_value_.load(head_of(args_.own_value, piece.row), chunks(), lane_);
    has_total_ = false;
    maximum_ = kLowestLogit;
    weight_sum_ = 0.f;
    if constexpr (kSumsValues) values_.clear();
    if constexpr (kSumsKeys) {
      keys_.clear();
      unit_.clear();
    }
    if constexpr (kToDestinations) start_record(piece);
    if constexpr (kHasTerms) edges_.start_row(piece.row);
  }

  __device__ void walk(const Piece& piece) {
    if (piece.is_empty()) return;
    if (ids_begin_ != piece.begin) load_ids(piece.begin);
    uint32_t begin = piece.begin;
    while (true) {
      const uint32_t column = ids_.column, edge = ids_.edge, left = piece.end - begin;
      const int count = left < kWarpSize ? static_cast<int>(left) : kWarpSize;
      load_ids(begin + count);  // a chunk ahead: the next row starts where this one ends
      draw(begin, count, edge);
      if constexpr (kHasTerms) edges_.start_chunk(edge);
      for (int start = 0; start < count; start += kTensorEdges) add_edges(start, count - start, column);
      if (left <= kWarpSize) break;
      if ((left - 1) % kTensorRun < kWarpSize) end_run();  // counted from the row's end: its first run is the shorter
      begin += kWarpSize;
    }
    ids_begin_ = piece.end;
  }
  __device__ void load_ids(uint32_t begin) {
    ids_.load(args_.units.rows, args_.columns, args_.edge_ids, kHasTerms, begin, lane_.lane);
  }
  // A bit for each edge of a chunk. of_terms: the lane's, where edges add something.
  __device__ void draw(uint32_t begin, int count, uint32_t of_terms) {
    dropped_ = 0;
    if (!args_.dropout.is_on()) return;
    const auto quad = static_cast<uint32_t>(head_) >> 2;
    const uint32_t edge = kHasTerms ? of_terms : args_.edge_ids.id(begin + (lane_.lane < count ? lane_.lane : 0));
    dropped_ = __ballot_sync(kFullMask, (args_.dropout.dropped(edge, quad) >> (head_ & 3) & 1) != 0);
  }

  __device__ void add_edges(int start, int left, uint32_t column) {
    const auto add = [&](auto kind) {
      add_batch(TensorBatch<decltype(kind)::value>(start, left, chunks(), sum_block_), column);
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

  template <class Batch>
  __device__ void add_batch(const Batch& batch, uint32_t column) {
    uint32_t by_row[2], by_pair[4];
    batch.columns_by_row(column, lane_, by_row);
    if constexpr (kForward) {
      batch.columns_by_pair(column, lane_, by_pair);
      add_results(batch, by_row, by_pair);
    } else if constexpr (Edges::kHasColumns) {
      const TensorColumns<T> columns = edges_.load_columns(batch);
      Factors of_keys, of_values;
      differentiate(batch, by_row, of_keys, of_values, columns);
      batch.columns_by_pair(column, lane_, by_pair);
      edges_.add_columns(batch, columns, add_rows(batch, by_pair_.key, by_pair, of_keys.value, keys_));
    } else {
      Factors of_keys, of_values;
      differentiate(batch, by_row, of_keys, of_values);
      batch.columns_by_pair(column, lane_, by_pair);
      // The same rows again, from the L1 cache.
      if constexpr (kSumsValues) add_rows(batch, by_pair_.value, by_pair, of_values.value, values_);
      add_rows<kIsGatv2>(batch, by_pair_.key, by_pair, of_keys.value, keys_);
    }
  }
  template <class Batch>
  __device__ void add_results(const Batch& batch, const uint32_t (&by_row)[2], const uint32_t (&by_pair)[4]) {
    auto keys = rows_for_dots(batch, by_row_.key, by_row);
    auto values = rows_for_sums(batch, by_pair_.value, by_pair);
    if constexpr (Edges::kHasColumns) {
      const TensorColumns<T> columns = edges_.load_columns(batch);
      const TensorFactors<T> factors(batch, weigh(batch, dots_of(batch, score_, keys), columns).value);
      add(values, factors, values_);
      edges_.add_columns(batch, columns, factors);
    } else {
      const TensorFactors<T> factors(batch, weigh(batch, dots_of(batch, score_, keys)).value);
      add(values, factors, values_);
    }
  }
  template <class Blocks>
  __device__ void add(Blocks& blocks, const TensorFactors<T>& factors, Sums& sums) const {
    blocks.for_each([&](const auto& rows, int block) { sums.add(rows, factors, lane_, block); });
  }
  // kPositive: of rows of GATv2, ones where LeakyReLU is applied to a positive z. Returns the factors as they enter.
  template <bool kPositive = false, class Batch>
  __device__ TensorFactors<T> add_rows(const Batch& batch, const char* first, const uint32_t (&columns)[4],
                                       const float (&factors)[2], Sums& sums) {
    auto rows = rows_for_sums(batch, first, columns);
    const TensorFactors<T> split(batch, factors);
    rows.for_each([&](const auto& some, int block) {
      if constexpr (kPositive) {
        sums.add(score_.positive(batch, some, block), split, lane_, block);
      } else {
        sums.add(some, split, lane_, block);
      }
    });
    return split;
  }

  // own: a score, or the own value.
  template <class Batch, class Own, class Blocks>
  __device__ typename Own::Dots dots_of(const Batch& batch, const Own& own, Blocks& blocks) const {
    typename Own::Dots dots;
    blocks.for_each([&](const auto& rows, int block) { own.add_dots(batch, rows, block, dots); });
    return dots;
  }

  // ---- Factors, of edges group and group + 8.

  template <class Batch>
  __device__ bool is_dropped(const Batch& batch, int i) const {
    return (dropped_ >> (batch.start() + lane_.group + 8 * i) & 1) != 0;
  }

  // columns: of edges, if they have any.
  template <class Batch, class... Columns>
  __device__ void find_logits(const Batch& batch, const typename Score::Dots& dots, float (&logits)[2],
                              const Columns&... columns) const {
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) logits[i] = score_.logit(args_, dots, i);
    if constexpr (kHasTerms) edges_.add_to_logits(batch, columns..., logits);
  }

  // Forward.
  template <class Batch, class... Columns>
  __device__ Factors weigh(const Batch& batch, const typename Score::Dots& dots, const Columns&... columns) {
    float logits[2], raised = maximum_;
    find_logits(batch, dots, logits, columns...);
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) {
      raised = fmaxf(raised, batch.has(lane_.group + 8 * i) ? logits[i] : kLowestLogit);
    }
    if (__any_sync(kFullMask, raised > maximum_)) raise_maximum(raised);
    Factors factors;
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) {
      const float weight = batch.has(lane_.group + 8 * i) ? exp_of_difference<T>(logits[i] - maximum_) : 0.f;
      weight_sum_ += weight;
      factors.value[i] = is_dropped(batch, i) ? 0.f : weight * kTensorFactor;
    }
    return factors;
  }
  __device__ void raise_maximum(float raised) {
    raised = max_over_groups(raised);
    const float rescale = exp_of_difference<T>(maximum_ - raised);
    weight_sum_ *= rescale;
    values_.multiply(rescale);
    edges_.multiply_sums(rescale);
    maximum_ = raised;
  }

  // Backward: dots, and factors from them.
  template <class Batch, class... Columns>
  __device__ void differentiate(const Batch& batch, const uint32_t (&by_row)[2], Factors& of_keys, Factors& of_values,
                                const Columns&... columns) {
    auto keys = rows_for_dots(batch, by_row_.key, by_row);
    auto values = kKeysAreValues ? keys : rows_for_dots(batch, by_row_.value, by_row);
    DestinationRecord records[2];
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) records[i] = kToDestinations ? record_ : Frame::load_record(by_row[i]);
    const auto dots_of_keys = dots_of(batch, score_, keys);
    const auto dots_of_values = dots_of(batch, own_value_, values);
    float logits[2], derivatives[2];
    find_logits(batch, dots_of_keys, logits, columns...);
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) derivatives[i] = dots_of_values.of_edge(i);
    if constexpr (Edges::kHasColumns) edges_.add_to_values(batch, columns..., derivatives);
    float weights[2], gradients[2];  // of records
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) {
      const float weight = exp_of_difference<T>(logits[i] - records[i].lse);
      const float multiplier = is_dropped(batch, i) ? 0.f : dropout_scale();
      const float gradient = weight * fmaf(multiplier, derivatives[i], -records[i].delta);
      const bool keep = batch.has(lane_.group + 8 * i);
      weights[i] = weight * multiplier;
      gradients[i] = gradient;
      of_keys.value[i] = keep ? gradient : 0.f;
      if constexpr (kIsGatv2) weight_sum_ += of_keys.value[i];
      of_values.value[i] = keep && !is_dropped(batch, i) ? weight * kTensorFactor : 0.f;
    }
    if constexpr (kWritesRecords) edges_.store_records(batch, weights, gradients);
    rescale_keys(unit_.fit(of_keys.value));
#pragma unroll
    for (int i = 0; i < Batch::kHalves; ++i) of_keys.value[i] = unit_.scaled(of_keys.value[i]);
  }
  __device__ void rescale_keys(float factor) {
    if (factor == 1.f) return;
    keys_.multiply(factor);
    edges_.multiply_sums(factor);
  }

  // lse, and the dot of the result and its gradient. The first piece of a row leaves them for the pass to sources.
  __device__ void start_record(const Piece& piece) {
    record_ = {__ldg(args_.lse + statistic_at(piece.row)), 0.f};
    if (Sums::writes(lane_, chunks())) {
      const int64_t at = own_elements(piece.row);
      float out[kTensorChunk], grad[kTensorChunk];
      load_precise<T>(args_.out, at, out);
      Fragment<T, kTensorChunk>::load(static_cast<const T*>(args_.own_value) + at).widen(grad);
#pragma unroll
      for (int i = 0; i < kTensorChunk; ++i) record_.delta = fmaf(grad[i], out[i], record_.delta);
    }
#pragma unroll
    for (int bit = 1; bit < kWarpSize; bit *= 2) record_.delta += __shfl_xor_sync(kFullMask, record_.delta, bit);
    const bool is_first = piece.is_whole_row || args_.units.rows.indptr.offset(piece.row) == piece.begin;
    if (!kWritesRecords && is_first && lane_.lane == 0) args_.records[statistic_at(piece.row)] = record_;
  }

  // ---- Runs, and the end of a row.

  __device__ void end_run() {
    if constexpr (kForward) {
      const float rescale = has_total_ ? exp_of_difference<T>(total_maximum_ - maximum_) : 1.f;
      cuda::end_run(has_total_, rescale, total_weight_, weight_sum_);
      values_.end_run(has_total_, rescale, kValueUnit);
      edges_.end_run(has_total_, rescale, kValueUnit);
      total_maximum_ = maximum_;
    } else {
      if constexpr (kSumsValues) values_.end_run(has_total_, 1.f, kValueUnit);
      keys_.end_run(has_total_, 1.f, unit_.unit());
      edges_.end_run(has_total_, 1.f, unit_.unit());
      if constexpr (kIsGatv2) cuda::end_run(has_total_, total_weight_, weight_sum_);
    }
    has_total_ = true;
  }

  // False: the row is walked again, for one block of sums after the other. Then all but the last call return false.
  __device__ bool store(const Piece& piece) {
    if constexpr (kForward) {
      return store_results(piece);
    } else {
      return store_gradients(piece);
    }
  }
  // Whether the sums of fast batches can be trusted.
  template <int kCount>
  __device__ bool accepts(const float (&values)[kCount]) const {
    if (sum_block_ != kAllBlocks) return true;
    float sum = values[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) sum += values[i];
    return __all_sync(kFullMask, fabsf(sum) <= FLT_MAX);
  }

  // Of the row. rescale: of the total.
  __device__ float sum_of_weights(float rescale) const {
    float sum = has_total_ ? fmaf(total_weight_, rescale, weight_sum_) : weight_sum_;
#pragma unroll
    for (int bit = 4; bit < kWarpSize; bit *= 2) sum += __shfl_xor_sync(kFullMask, sum, bit);
    return sum;
  }

  __device__ bool store_results(const Piece& piece) {
    float values[kTensorChunk];
    ColumnValues columns = {};
    const float rescale = has_total_ ? exp_of_difference<T>(total_maximum_ - maximum_) : 1.f;
    values_.finish(has_total_, rescale, kValueUnit, values);
    edges_.finish(has_total_, rescale, kValueUnit, columns);
    if (!accepts(values) || (Edges::kHasColumns && !accepts(columns))) return false;
    const float sum = sum_of_weights(rescale);
    const float factor = dropout_scale() * (piece.is_whole_row ? reciprocal_of_sum(sum, has_edges(piece, sum)) : 1.f);
#pragma unroll
    for (int i = 0; i < kTensorChunk; ++i) values[i] *= factor;
    if (writes()) {
      if (!piece.is_whole_row) {
        store_rounded(args_.partials.vectors + own_elements(piece.line), values);
      } else if (is_wide()) {
        store_rounded(args_.edge.columns.wide + own_elements(piece.line), values);
      } else {
        store_precise<T>(args_.out, own_elements(piece.line), values);
      }
    }
    edges_.store_sums(piece, columns, factor);
    if (lane_.lane == 0) store_statistics(piece, sum);
    return sum_block_ == kAllBlocks;
  }
  __device__ void store_statistics(const Piece& piece, float sum) const {
    if (!piece.is_whole_row) {
      // As in pair/lanes/lane.cuh, of a piece of which nothing is left.
      const float kept = kHasTerms && !has_edges(piece, sum) ? 1.f : sum;
      args_.partials.store_sums(piece.line, args_.layout.heads, head_, {maximum_, kept, 0.f, 0.f});
    } else if (args_.lse != nullptr) {
      args_.lse[statistic_at(piece.row)] = lse_of(maximum_, sum, has_edges(piece, sum));
    }
  }
  // sum: of exponentials. Terms of edges may remove all edges.
  static __device__ bool has_edges(const Piece& piece, float sum) {
    return kHasTerms ? !(sum == 0.f) : !piece.is_empty();
  }
  // Whether results are fp32, for projections of columns to be added.
  __device__ bool is_wide() const { return Edges::kHasColumns && args_.edge.columns.wide != nullptr; }

  __device__ bool store_gradients(const Piece& piece) {
    float values[kTensorChunk], keys[kTensorChunk];
    ColumnValues columns = {};
    if constexpr (kSumsValues) {
      values_.finish(has_total_, 1.f, kValueUnit, values);
      if (!accepts(values)) return false;
    }
    keys_.finish(has_total_, 1.f, unit_.unit(), keys);
    edges_.finish(has_total_, 1.f, unit_.unit(), columns);
    if (!accepts(keys) || (Edges::kHasColumns && !accepts(columns))) return false;
    if constexpr (kIsGatv2) {
      finish_keys(piece, keys);
#pragma unroll
      for (int i = 0; kSumsValues && i < kTensorChunk; ++i) keys[i] = fmaf(dropout_scale(), values[i], keys[i]);
      store_gradient(piece, args_.grad_key, args_.partial_key, 1.f, keys);
    } else {
      if constexpr (kSumsValues) store_gradient(piece, args_.grad_value, args_.partial_value, dropout_scale(), values);
      store_gradient(piece, is_wide() ? args_.edge.columns.wide : args_.grad_key, args_.partial_key, args_.logit.linear,
                     keys);
      edges_.store_sums(piece, columns, args_.logit.linear);
    }
    return sum_block_ == kAllBlocks;
  }
  // Of GATv2: from the sums over edges with a positive z to the gradient of the own key.
  __device__ void finish_keys(const Piece& piece, float (&keys)[kTensorChunk]) {
    const float factor_sum = sum_of_weights(1.f);
    if (!writes()) return;
    const int at = Sums::own_chunk(lane_) * kMaxAccessBytes;
    float product[kTensorChunk];
    Score::finish(args_.logit.slope, head_of(args_.own_key, piece.row) + at, head_of(args_.logit.attn) + at, factor_sum,
                  keys, product);
    products_.add(product);
  }
  __device__ void store_gradient(const Piece& piece, void* gradient, float* partial, float factor,
                                 float (&values)[kTensorChunk]) const {
#pragma unroll
    for (int i = 0; i < kTensorChunk; ++i) values[i] *= factor;
    if (!writes()) return;
    Frame::store_chunk(piece, Sums::own_chunk(lane_), gradient, is_wide(), partial, values);
  }

  ChunkIds ids_;  // of the next chunk
  uint32_t ids_begin_;
  uint32_t dropped_;
  int sum_block_;  // that sums take, or all of them

  // Of the row.
  OwnRow own_value_;
  DestinationRecord record_;
  Sums values_, keys_;
  Score score_;
  Edges edges_;
  TensorUnit unit_;  // of the factors of keys
  float maximum_;
  float weight_sum_;  // forward: of weights; backward, of GATv2: of the gradients of logits
  bool has_total_;
  Products products_;
  float &total_weight_, &total_maximum_;
};

}  // namespace halfgnn::cuda
