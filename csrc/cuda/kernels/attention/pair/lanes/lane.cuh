// What a lane of GATv2's and dot attention's kernel does with a row, or a piece of a long one: the walk over its edges,
// and what is left at its end.
#pragma once

#include "../epilogue.cuh"
#include "gradient_weights.cuh"
#include "own_row.cuh"
#include "products.cuh"
#include "ring.cuh"
#include "sums.cuh"

namespace halfgnn::cuda {

template <class Config>
using WeightsOf =
    std::conditional_t<Config::kForward, ForwardWeights<Config>,
                       std::conditional_t<Config::kReadsRecords, RecordedWeights<Config>, GradientWeights<Config>>>;

template <class Config>
class PairLane {
  using T = typename Config::Element;
  using Row = typename Config::Row;
  using Edges = typename Config::Edges;
  using Sums = PairSums<Config>;
  using Weights = WeightsOf<Config>;
  using Products = PairProducts<Config>;
  using Ring = std::conditional_t<Config::kHasRing, PairRing<Config>, NoRing>;
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;
  static constexpr int kUnroll = Config::kUnroll;
  static constexpr bool kForward = Config::kForward;
  // Edges of a piece from which it walks a ring: what makes, fills and empties it takes 350 instructions, those of 14
  // edges. A guess.
  static constexpr uint32_t kRingEdges = 128;

 public:
  // Of a block, in arrays of one element per thread.
  struct Shared : PairOwnRow<Config>::Shared, Ring::Shared {
    typename Sums::Totals totals;
    typename Weights::Shared weights;
  };
  using SharedRuns = typename Sums::SharedRuns;
  using SharedProducts = typename Products::Shared;
  using SharedEdges = typename Edges::Shared;

  __device__ PairLane(const PairArgs& args, SharedRuns& runs, Shared& shared, SharedProducts& products,
                      SharedEdges& edges)
      : frame_(args),
        ids_{0, 0},
        ids_begin_(~0u),
        ring_(shared),
        own_(shared),
        records_(frame_),
        edges_(frame_, edges),
        weights_(frame_, shared.weights),
        sums_(runs, shared.totals),
        products_(frame_, products) {}

  // The whole warp takes part, with one piece.
  __device__ void run(const Piece& piece) {
    weights_.start_row(piece);
    if constexpr (Config::kTiled) {
      const int tiles = args().layout.tiles;
      for (int tile = 0; tile < tiles; ++tile) {
        start_tile(piece, tile);
        walk<PairStep::kDots>(piece);
      }
      __syncwarp();  // those who share a head read what one of them wrote
      weights_.end_dots();
      for (int tile = 0; tile < tiles; ++tile) {
        start_tile(piece, tile);
        walk<PairStep::kSums>(piece);
        finish(piece, tile);
      }
      __syncwarp();
    } else {
      start_tile(piece, 0);
      if (!Config::kHasRing || piece.num_edges() < kRingEdges) {
        walk<PairStep::kAll>(piece);
      } else if constexpr (Config::kHasRing) {
        walk_ring(piece);
      }
      finish(piece, 0);
    }
  }

  // The whole block takes part, once all rows are done.
  __device__ void write_products() const { products_.write(); }

 private:
  __device__ const PairArgs& args() const { return frame_.args; }

  // ---- Edges.

  template <PairStep kStep>
  __device__ void walk(const Piece& piece) {
    const int log2_group = frame_.log2_groups(), groups = 1 << log2_group;
    if (!piece.is_empty() && ids_begin_ != piece.begin) load_ids(piece.begin);
    for (uint32_t begin = piece.begin; begin < piece.end; begin += kWarpSize) {
      const uint32_t column = ids_.column, edge = ids_.edge;
      const int count = piece.end - begin < kWarpSize ? static_cast<int>(piece.end - begin) : kWarpSize;
      load_ids(begin + count);  // a chunk ahead: the next row starts where this one ends
      weights_.draw(edge);
      const PairChunk chunk{column, begin, count, edge};
      int start = 0;
      for (; start + (kUnroll << log2_group) <= chunk.count; start += kUnroll << log2_group) {
        add_batch<kStep, kUnroll, true>(chunk, start);
      }
      if (kUnroll > 1 && start + groups < chunk.count) {
        add_batch<kStep, kUnroll, false>(chunk, start);
      } else if (start < chunk.count) {  // one edge per group
        add_batch<kStep, 1, false>(chunk, start);
      }
      if (kStep != PairStep::kDots && Sums::is_run(piece.end - begin, log2_group)) {
        sums_.end_run(false, weights_.maximum, weights_.factor_sum, edges_);
      }
    }
  }
  __device__ void load_ids(uint32_t begin) {
    ids_begin_ = begin;
    const Rows& rows = args().units.rows;
    if constexpr (Config::kScore == PairScore::kDot) {
      ids_.load(rows, args().columns, args().edge_ids, reads_edges(), begin, frame_.lane());
    } else {
      const auto num_edges = static_cast<uint32_t>(rows.num_edges);
      if (begin >= num_edges) return;
      const uint32_t lane = frame_.lane(), position = begin + lane < num_edges ? begin + lane : num_edges - 1;
      // Where there are edges there are columns. Backward, it takes a register to know, unless rows are in a ring.
      constexpr bool kKnowsColumns = kForward || Config::kHasRing;
      ids_.column = id_at<!kKnowsColumns>(args().columns, position);
      if (reads_edges()) ids_.edge = id_at<true>(args().edge_ids, position);
    }
  }
  // Of GATv2, whose passes have no register left for the size of an id, which ChunkIds::load keeps from chunk to chunk:
  // a load for each type.
  template <bool kMayBePositions>
  static __device__ uint32_t id_at(const Ids& ids, uint32_t position) {
    if (kMayBePositions && ids.data == nullptr) return position;
    if (ids.is_int64) return static_cast<uint32_t>(__ldcs(static_cast<const long long*>(ids.data) + position));
    return static_cast<uint32_t>(__ldcs(static_cast<const int*>(ids.data) + position));
  }
  __device__ bool reads_edges() const {
    return Config::kHasRecords || Config::Terms::kHasTerms || args().dropout.is_on();
  }

  __device__ void start_tile(const Piece& piece, int tile) {
    const HeadVectors<kRepeat> vectors(args().layout, frame_.work, tile);
    own_.load(args(), piece.row, vectors);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      const uint32_t at = vectors.index[r] * Row::kBytes;
      key_[r] = as_computed(static_cast<const char*>(args().key) + at);
      if constexpr (Config::kTwoRows) value_[r] = as_computed(static_cast<const char*>(args().value) + at);
    }
    edges_.start_row(piece.row);
    sums_.clear();
    edges_.clear_sums();
    weights_.start_tile(tile);
  }

  // With a ring. A chunk has whole batches: at most eight groups.
  __device__ void walk_ring(const Piece& piece) {
    Ring ring(frame_, ring_);
    const int step = ring.step(), ahead = kPairStages * step;
    int left = static_cast<int>(piece.end - piece.begin);  // from the next batch to be used on
    if (left > 0 && ids_begin_ != piece.begin) load_ids(piece.begin);
    PairChunk chunk{0, 0, 0, 0};  // of the next copies, which begin at `start`
    int start = kWarpSize;
#pragma unroll 1
    for (int before = 0; before < ahead; before += step) {
      if (start == kWarpSize) next_chunk(chunk, start, left - before);
      if (left - before >= step) {
        request<true>(ring, chunk, start, 0);
      } else {
        request<false>(ring, chunk, start, left - before);
      }
      start += step;
      ring.turn();
    }
    while (left > 0) {
      if (start == kWarpSize) {
        next_chunk(chunk, start, left - ahead);
        if (Sums::is_run(left, frame_.log2_groups())) {
          sums_.end_run(false, weights_.maximum, weights_.factor_sum, edges_);
        }
      }
      // Of this chunk, up to the last full batch.
      const int first = start, last = start + left - ahead - step, end = last < kWarpSize ? last + 1 : kWarpSize;
#pragma unroll 1
      for (; start < end; start += step) use<true>(ring, chunk, start, 0);
      left -= start - first;
      if (start < kWarpSize && left > 0) {
        use<false>(ring, chunk, start, left - ahead);
        start += step;
        left -= step;
      }
    }
  }
  __device__ void next_chunk(PairChunk& chunk, int& start, int left) {
    start = 0;
    if (left <= 0) return;
    chunk.column = ids_.column;
    chunk.edge = ids_.edge;
    load_ids(ids_begin_ + (left < kWarpSize ? left : kWarpSize));
  }
  template <bool kFull>
  __device__ void request(Ring& ring, PairChunk& chunk, int start, int left) {
    chunk.count = start + left;
    if (kFull || left > 0) ring.template request<kFull>(chunk, start, key_[0]);
    end_group_of_copies();
  }
  // Uses a batch, and issues the copies of the one that takes its place, of `left` edges and more. The sums come before
  // the copies: then registers hold either rows or addresses.
  template <bool kFull>
  __device__ void use(Ring& ring, PairChunk& chunk, int start, int left) {
    PairRows<Config, kUnroll> rows;
    PairFactors<kUnroll> factors;
    wait_for_copies<kPairStages - 1>();
    __syncwarp();
    ring.take(rows, factors);
    __syncwarp();
    sums_.add(rows, factors, 1.f, own_.score());
    request<kFull>(ring, chunk, start, left);
    weights_.take(PairBatch<kUnroll, kUnroll, true>{chunk, 0}, factors);
    ring.turn();
  }

  // All loads are issued before the first use.
  template <PairStep kStep, int kEdges, bool kFull>
  __device__ void add_batch(const PairChunk& chunk, int start) {
    const PairBatch<kEdges, kEdges, kFull> batch{chunk, start};
    const PairBatch<kEdges, 1, kFull> shared_batch{chunk, start};
    // Heads of GATv2 that have records have enough lanes, unless edges add terms.
    constexpr bool kAlwaysShares = Config::kWritesRecords && !Config::Terms::kHasTerms;
    const bool shares = kEdges > 1 && (kAlwaysShares || frame_.log2_owners() > 0);
    // Calls use(batch) with the edges that a lane owns.
    const auto of_owned = [&](const auto& use) { return shares ? use(shared_batch) : use(batch); };

    PairRows<Config, kEdges> rows;
    PairFactors<kEdges> factors;
    load_rows<kStep>(batch, rows);
    if constexpr (Config::kReadsRecords) {
      records_.load(batch, factors, rows.signs);
      clear_missing<kStep>(batch, rows);
      weights_.take(batch, factors);
      // Otherwise the compiler begins with sums, which wait for records, before all rows are in flight.
      __syncwarp();
      sums_.add(rows, factors, 1.f, own_.score());
    } else if constexpr (kStep == PairStep::kDots) {
      of_owned([&](const auto& owned) { weights_.load(owned, factors); });
      clear_missing<kStep>(batch, rows);
      own_.find_dots(args(), rows, factors);
      of_owned([&](const auto& owned) { weights_.keep_dots(owned, factors); });
    } else if constexpr (kStep == PairStep::kSums) {
      clear_missing<kStep>(batch, rows);
      of_owned([&](const auto& owned) { weights_.weigh_kept(owned, factors); });
      sums_.add(rows, factors, 1.f, own_.score());
    } else {
      edges_.load(batch, rows);
      of_owned([&](const auto& owned) { weights_.load(owned, factors); });
      of_owned([&](const auto& owned) { edges_.load_owned(owned, factors); });
      edges_.prepare(batch, rows);
      if constexpr (Config::kHasSigns) records_.store_signs(batch, own_.score(), rows);
      clear_missing<kStep>(batch, rows);
      own_.find_dots(args(), rows, factors);
      edges_.add_dots(batch, rows, factors);
      const float rescale = of_owned([&](const auto& owned) { return weights_.weigh(owned, edges_, factors); });
      if constexpr (kForward && Config::kJoinsAtOnce) {
        if (weights_.rose) sums_.rescale(rescale);
      }
      sums_.add(rows, factors, rescale, own_.score());
      edges_.add_sums(rows, factors, rescale);
      if constexpr (Config::kWritesRecords) {
        of_owned([&](const auto& owned) { records_.store_factors(owned, factors); });
        of_owned([&](const auto& owned) { edges_.store_owned_gradients(owned, factors); });
        of_owned([&](const auto& owned) { edges_.hand_out(owned, factors); });
        edges_.store_gradients(batch, own_, rows, factors, products_);
      }
    }
  }

  // Rows that a step reads.
  template <PairStep kStep>
  static constexpr bool kReadsKeys = kStep != PairStep::kSums || Config::kSumsKeys || !Config::kTwoRows;
  template <PairStep kStep>
  static constexpr bool kReadsValues =
      Config::kTwoRows && (Config::kSumsValues ? kStep != PairStep::kDots || !kForward : kStep != PairStep::kSums);

  template <PairStep kStep, class Batch>
  __device__ void load_rows(const Batch& batch, PairRows<Config, Batch::kEdges>& rows) const {
    uint32_t columns[Batch::kEdges];
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) {
      columns[u] = __shfl_sync(kFullMask, batch.chunk.column, batch.read(frame_.place(batch, u)));
    }
#pragma unroll
    for (int u = 0; u < Batch::kEdges; ++u) {
      const uint64_t row = offset_of(columns[u]);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        if constexpr (kReadsKeys<kStep>) rows.keys[u][r] = Row::load(key_[r] + row);
        if constexpr (kReadsValues<kStep>) rows.values[u][r] = Row::load(value_[r] + row);
      }
    }
  }
  // Of a column's row.
  __device__ uint64_t offset_of(uint32_t column) const {
    const uint32_t bytes = args().row_elements * static_cast<uint32_t>(sizeof(T));
    return Config::kKeepsProducts ? wide_product(column, bytes) : uint64_t{column} * bytes;
  }
  // Rows of places past the last edge, which were read as that edge, become 0. By masks where ptxas would otherwise
  // load one edge after another, because signs or the places of two rows take the predicates. Elsewhere masks take
  // registers of 3 to 4 warps.
  static constexpr bool kByMasks =
      Config::kReadsRecords ||
      (kRepeat == 1 && (Config::kScore == PairScore::kDot ? sizeof(T) == 2 : kForward && sizeof(T) == 4));
  using Keep = std::conditional_t<kByMasks, uint32_t, bool>;
  template <PairStep kStep, class Batch>
  __device__ void clear_missing(const Batch& batch, PairRows<Config, Batch::kEdges>& rows) const {
#pragma unroll
    for (int u = 0; u < (Batch::kFull ? 0 : Batch::kEdges); ++u) {
      const int place = frame_.place(batch, u);
      const Keep keep = kByMasks ? batch.mask(place) : batch.has(place);
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        if constexpr (kReadsKeys<kStep>) rows.keys[u][r].keep_if(keep);
        if constexpr (kReadsValues<kStep>) rows.values[u][r].keep_if(keep);
      }
    }
  }

  // ---- The end of a row.

  __device__ void finish(const Piece& piece, int tile) {
    sums_.end_row(weights_.maximum, weights_.factor_sum, edges_);
    if constexpr (kForward) {
      store_results(piece, tile);
    } else {
      store_gradients(piece, tile);
    }
  }

  __device__ void store_results(const Piece& piece, int tile) {
    const PairEpilogue<T, typename Config::Terms> epilogue(args());
    const float maximum = frame_.max_over_edges(weights_.maximum);
    const float rescale = exp_of_difference<T>(weights_.maximum - maximum);
    const float sum = frame_.sum_over_owners(weights_.factor_sum * rescale);
    const float factor = epilogue.result_factor(piece, sum);
    const HeadVectors<kRepeat> vectors(args().layout, frame_.work, tile);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float values[kVector];
      sums_.load(0, r, values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] *= rescale;
      frame_.sum_over_groups(values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] *= factor;
      if (frame_.writes_rows() && r < vectors.count) epilogue.store_result(piece, vectors.index[r] * kVector, values);
    }
    edges_.store_sums(piece, rescale * factor);
    if (tile == 0 && frame_.writes_statistics()) epilogue.store_statistics(piece, frame_.work.head, maximum, sum);
  }

  __device__ void store_gradients(const Piece& piece, int tile) {
    const PairEpilogue<T, typename Config::Terms> epilogue(args());
    const float factor_sum = Config::kWritesProducts ? weights_.total_factor() : 0.f;
    const HeadVectors<kRepeat> vectors(args().layout, frame_.work, tile);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float keys[kVector], values[kVector], product[kVector];
      sums_.load(Config::kKeySum, r, keys);
      frame_.sum_over_groups(keys);
      if constexpr (Config::kSumsValues) {
        sums_.load(0, r, values);
        frame_.sum_over_groups(values);
      }
      if (!frame_.writes_rows() || r >= vectors.count) continue;
      const uint32_t at = vectors.index[r] * kVector;
      own_.finish(args(), factor_sum, r, keys, product);
      products_.add(r, at, product);
      if constexpr (Config::kOwnKeyIsValue) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) keys[i] += values[i];
      } else if constexpr (Config::kSumsValues) {
        epilogue.store_value_gradient(piece, at, values);
      }
      epilogue.store_key_gradient(piece, at, keys);
    }
    edges_.store_sums(piece, args().logit.linear);
  }

  const PairFrame<Config> frame_;
  ChunkIds ids_;  // of the next chunk
  uint32_t ids_begin_;

  // Of the row, or the tile of it.
  typename Ring::Shared& ring_;
  PairOwnRow<Config> own_;
  const char* key_[kRepeat];  // of the lane's part of the first column's row
  const char* value_[Config::kTwoRows ? kRepeat : 1];

  const PairEdgeRecords<Config> records_;
  Edges edges_;
  Weights weights_;
  Sums sums_;
  Products products_;
};

}  // namespace halfgnn::cuda
