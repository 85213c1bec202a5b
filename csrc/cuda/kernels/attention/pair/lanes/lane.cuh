// What a lane of GATv2's and dot attention's kernel does with a row, or a piece of a long one: the walk over its edges,
// and what is left at its end.
#pragma once

#include "edge_columns.cuh"
#include "edge_rows.cuh"
#include "products.cuh"
#include "projection.cuh"
#include "sums.cuh"
#include "weights.cuh"

namespace halfgnn::cuda {

template <class Config>
class PairLane {
  using T = typename Config::Element;
  using Row = typename Config::Row;
  using Sums = PairSums<Config>;
  using Weights = PairWeights<Config>;
  using Products = PairProducts<Config>;
  using Projection = PairProjection<Config>;
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;
  static constexpr int kUnroll = Config::kUnroll;
  static constexpr bool kForward = Config::kForward;

 public:
  // Of a block, in arrays of one element per thread.
  struct Shared {
    typename Sums::Totals totals;
    typename Weights::Shared weights;
  };
  using SharedRuns = typename Sums::SharedRuns;
  using SharedProducts = typename Products::Shared;
  using SharedProjection = typename Projection::Shared;

  __device__ PairLane(const PairArgs& args, SharedRuns& runs, Shared& shared, SharedProducts& products,
                      SharedProjection& projection)
      : frame_(args),
        ids_{0, 0},
        ids_begin_(~0u),
        records_(frame_),
        edge_rows_(frame_),
        columns_(frame_),
        projection_(frame_, projection),
        weights_(frame_, shared.weights),
        sums_(runs, shared.totals),
        products_(frame_, products) {}

  // The whole warp takes part, with one piece.
  __device__ void run(const Piece& piece) {
    weights_.start_row(piece);
    if constexpr (Config::kTiled) {
      const int tiles = args().layout.tiles;
      for (int tile = 0; tile < tiles; ++tile) walk<PairStep::kDots>(piece, tile);
      __syncwarp();  // those who share a head read what one of them wrote
      if constexpr (kForward) weights_.maximum = frame_.max_over_edges(weights_.maximum);
      for (int tile = 0; tile < tiles; ++tile) {
        walk<PairStep::kSums>(piece, tile);
        finish(piece, tile);
      }
      __syncwarp();
    } else {
      walk<PairStep::kAll>(piece, 0);
      finish(piece, 0);
    }
  }

  // The whole block takes part, once all rows are done.
  __device__ void write_products() const { products_.write(); }

 private:
  __device__ const PairArgs& args() const { return frame_.args; }

  // ---- Edges.

  template <PairStep kStep>
  __device__ void walk(const Piece& piece, int tile) {
    start_tile(piece, tile);
    const int log2_group = frame_.log2_groups(), groups = 1 << log2_group;
    if (!piece.is_empty() && ids_begin_ != piece.begin) load_ids(piece.begin);
    for (uint32_t begin = piece.begin; begin < piece.end; begin += kWarpSize) {
      const uint32_t column = ids_.column, edge = ids_.edge;
      const int count = piece.end - begin < kWarpSize ? static_cast<int>(piece.end - begin) : kWarpSize;
      load_ids(begin + count);  // a chunk ahead: the next row starts where this one ends
      if constexpr (!Config::kReadsRecords) weights_.draw(edge);
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
        sums_.end_run(false, weights_.maximum, weights_.factor_sum);
      }
    }
  }
  __device__ void load_ids(uint32_t begin) {
    ids_begin_ = begin;
    const Rows& rows = args().units.rows;
    if constexpr (Config::Score::kKind == PairKind::kDot) {
      ids_.load(rows, args().columns, args().edge_ids, reads_edges(), begin, frame_.lane());
    } else {
      const auto num_edges = static_cast<uint32_t>(rows.num_edges);
      if (begin >= num_edges) return;
      const uint32_t lane = frame_.lane(), position = begin + lane < num_edges ? begin + lane : num_edges - 1;
      ids_.column = id_at(args().columns, position);
      if (reads_edges()) ids_.edge = id_at(args().edge_ids, position);
    }
  }
  // Of GATv2, whose passes have no register left for the size of an id, which ChunkIds::load keeps from chunk to chunk:
  // a load for each type.
  static __device__ uint32_t id_at(const Ids& ids, uint32_t position) {
    if (ids.data == nullptr) return position;
    if (ids.is_int64) return static_cast<uint32_t>(__ldcs(static_cast<const long long*>(ids.data) + position));
    return static_cast<uint32_t>(__ldcs(static_cast<const int*>(ids.data) + position));
  }
  __device__ bool reads_edges() const { return Config::kHasRecords || Config::kHasTerms || args().dropout.is_on(); }

  __device__ void start_tile(const Piece& piece, int tile) {
    const HeadVectors<kRepeat> vectors(args().layout, frame_.work, tile);
    own_.load(args(), piece.row, vectors);
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      const uint32_t at = vectors.index[r] * Row::kBytes;
      key_[r] = as_computed(static_cast<const char*>(args().key) + at);
      if constexpr (Config::kTwoRows) value_[r] = as_computed(static_cast<const char*>(args().value) + at);
    }
    if constexpr (Config::kHasColumns) columns_.start_row(piece.row);
    sums_.clear();
    weights_.start_tile(tile);
  }

  // All loads are issued before the first use.
  template <PairStep kStep, int kEdges, bool kFull>
  __device__ void add_batch(const PairChunk& chunk, int start) {
    if constexpr (Config::kReadsRecords) return add_recorded_batch<kEdges, kFull>(chunk, start);
    constexpr bool kNeedsDots = kStep != PairStep::kSums, kNeedsSums = kStep != PairStep::kDots;
    const PairBatch<kEdges, kEdges, kFull> batch{chunk, start};
    const PairBatch<kEdges, 1, kFull> shared_batch{chunk, start};
    // Heads of GATv2 that have records have enough lanes, unless edges add terms.
    const bool shares = kEdges > 1 && ((Config::kWritesRecords && !Config::kHasTerms) || frame_.log2_owners() > 0);
    PairRows<Config, kEdges> rows;
    load_rows<kStep>(batch, rows);
    if constexpr (Config::kHasEdgeRows) edge_rows_.load(batch, rows);
    if constexpr (Config::kHasColumns) columns_.load(batch, rows);
    typename Projection::template Fetched<kEdges> fetched;
    if constexpr (Config::kIsProjected) projection_.load(batch, fetched);
    PairFactors<kEdges> factors;
    if constexpr (Config::kPass == PairPass::kSources && kNeedsDots) {
      shares ? weights_.load_records(shared_batch, factors) : weights_.load_records(batch, factors);
    }
    if constexpr (Config::kHasTerms) {
      shares ? weights_.load_biases(shared_batch, factors) : weights_.load_biases(batch, factors);
    }
    if constexpr (Config::kIsProjected) projection_.project(batch, fetched, rows.projected);
    if constexpr (Config::kHasSigns) records_.store_signs(batch, own_.score(), rows);
    clear_missing<kStep>(batch, rows);
    if constexpr (kNeedsDots) own_.find_dots(args(), rows, factors);
    if constexpr (Config::kHasColumns) {
      columns_.clear_missing(batch, rows);
      columns_.add_dots(rows, factors);
    }
    const float rescale =
        shares ? weights_.template weigh<kStep>(shared_batch, factors) : weights_.template weigh<kStep>(batch, factors);
    if constexpr (kNeedsSums) sums_.add(rows, factors, rescale, own_.score());
    if constexpr (Config::kWritesRecords) {
      shares ? records_.store_factors(shared_batch, factors) : records_.store_factors(batch, factors);
    }
    if constexpr (Config::kWritesRecords && Config::kHasTerms) {
      shares ? weights_.store_bias_gradients(shared_batch, factors) : weights_.store_bias_gradients(batch, factors);
    }
    if constexpr (Config::kWritesRecords && Config::kHasEdgeRows) {
      if (shares) frame_.hand_out(shared_batch, factors.value);
      edge_rows_.store_gradients(batch, own_, rows, factors, products_);
    }
  }
  template <int kEdges, bool kFull>
  __device__ void add_recorded_batch(const PairChunk& chunk, int start) {
    const PairBatch<kEdges, kEdges, kFull> batch{chunk, start};
    PairRows<Config, kEdges> rows;
    PairFactors<kEdges> factors;
    load_rows<PairStep::kAll>(batch, rows);
    records_.load(batch, factors, rows.signs);
    clear_missing<PairStep::kAll>(batch, rows);
    weights_.take(batch, factors);
    sums_.add(rows, factors, 1.f, own_.score());
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
      const uint64_t row = static_cast<uint64_t>(columns[u]) * (args().row_elements * static_cast<uint32_t>(sizeof(T)));
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        if constexpr (kReadsKeys<kStep>) rows.keys[u][r] = Row::load(key_[r] + row);
        if constexpr (kReadsValues<kStep>) rows.values[u][r] = Row::load(value_[r] + row);
      }
    }
  }
  // Rows of places past the last edge, which were read as that edge, become 0.
  template <PairStep kStep, class Batch>
  __device__ void clear_missing(const Batch& batch, PairRows<Config, Batch::kEdges>& rows) const {
    if constexpr (!Batch::kFull) {
#pragma unroll
      for (int u = 0; u < Batch::kEdges; ++u) {
        const bool keep = batch.has(frame_.place(batch, u));
#pragma unroll
        for (int r = 0; r < kRepeat; ++r) {
          if constexpr (kReadsKeys<kStep>) rows.keys[u][r].keep_if(keep);
          if constexpr (kReadsValues<kStep>) rows.values[u][r].keep_if(keep);
        }
      }
    }
  }

  // ---- The end of a row.

  __device__ void finish(const Piece& piece, int tile) {
    sums_.end_row(weights_.maximum, weights_.factor_sum);
    if constexpr (kForward) {
      store_results(piece, tile);
    } else {
      store_gradients(piece, tile);
    }
  }

  // sum: of exponentials. Terms of edges may remove all edges.
  static __device__ bool has_edges(const Piece& piece, float sum) {
    return Config::kHasTerms ? !(sum == 0.f) : !piece.is_empty();
  }
  __device__ void store_results(const Piece& piece, int tile) {
    const float maximum = frame_.max_over_edges(weights_.maximum);
    const float rescale = exp_of_difference<T>(weights_.maximum - maximum);
    const float sum = frame_.sum_over_owners(weights_.factor_sum * rescale);
    const float factor = piece.is_whole_row ? reciprocal_of_sum(sum, has_edges(piece, sum)) : 1.f;
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
      if (!frame_.writes_rows() || r >= vectors.count) continue;
      const int64_t at = vectors.index[r] * kVector;
      if (!piece.is_whole_row) {
        store_rounded(args().partials.vector(piece.line, args().row_elements, 0) + at, values);
      } else if (is_wide()) {
        store_rounded(args().edge.columns.wide + static_cast<int64_t>(piece.line) * args().row_elements + at, values);
      } else {
        store_precise<T>(args().out, static_cast<int64_t>(piece.line) * args().row_elements + at, values);
      }
    }
    if constexpr (Config::kHasColumns) store_columns(piece, rescale * factor);
    if (tile > 0 || !frame_.writes_statistics()) return;
    if (!piece.is_whole_row) {
      // A piece of which nothing is left adds nothing, at the lowest maximum. Its sum keeps that of the row from being
      // 0.
      const float kept = Config::kHasTerms && !has_edges(piece, sum) ? 1.f : sum;
      args().partials.store_sums(piece.line, args().layout.heads, frame_.work.head, {maximum, kept, 0.f, 0.f});
    } else if (args().lse != nullptr) {
      args().lse[frame_.statistic_at(piece.row)] = lse_of(maximum, sum, has_edges(piece, sum));
    }
  }

  __device__ void store_gradients(const Piece& piece, int tile) {
    const auto& score = own_.score();
    const float factor_sum = Config::Score::kNeedsFactorSum ? weights_.total_factor() : 0.f;
    const HeadVectors<kRepeat> vectors(args().layout, frame_.work, tile);
    const int64_t first = static_cast<int64_t>(piece.line) * args().row_elements;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float keys[kVector], values[kVector];
      sums_.load(Config::kKeySum, r, keys);
      frame_.sum_over_groups(keys);
      if constexpr (Config::kSumsValues) {
        sums_.load(0, r, values);
        frame_.sum_over_groups(values);
      }
      if (!frame_.writes_rows() || r >= vectors.count) continue;
      const uint32_t at = vectors.index[r] * kVector;
      float product[kVector];
      score.finish(args(), factor_sum, r, keys, product);
      if constexpr (Config::kWritesProducts) products_.add(r, at, product);
      if constexpr (Config::kOwnKeyIsValue) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) keys[i] += values[i];
      } else if constexpr (Config::kSumsValues) {
        store_gradient(piece, args().grad_value, args().partial_value, first + at, values);
      }
      if (piece.is_whole_row && is_wide()) {
        store_rounded(args().edge.columns.wide + first + at, keys);
      } else {
        store_gradient(piece, args().grad_key, args().partial_key, first + at, keys);
      }
    }
    if constexpr (Config::kHasColumns) store_columns(piece, args().logit.linear);
  }
  __device__ bool is_wide() const { return Config::kHasColumns && args().edge.columns.wide != nullptr; }
  // factor: of the sums of columns.
  __device__ void store_columns(const Piece& piece, float factor) const {
    float sums[kPairColumns];
    sums_.load_columns(sums);
    columns_.store_sums(piece, factor, sums);
  }
  __device__ static void store_gradient(const Piece& piece, void* gradient, float* partial, int64_t at,
                                        const float (&values)[kVector]) {
    if (piece.is_whole_row) {
      store_rounded(static_cast<T*>(gradient) + at, values);
    } else {
      store_rounded(partial + at, values);
    }
  }

  const PairFrame<Config> frame_;
  ChunkIds ids_;  // of the next chunk
  uint32_t ids_begin_;

  // Of the row, or the tile of it.
  PairOwnRow<Config> own_;
  const char* key_[kRepeat];  // of the lane's part of the first column's row
  const char* value_[Config::kTwoRows ? kRepeat : 1];

  const PairEdgeRecords<Config> records_;
  const PairEdgeRows<Config> edge_rows_;
  PairEdgeColumns<Config> columns_;
  const Projection projection_;
  Weights weights_;
  Sums sums_;
  Products products_;
};

}  // namespace halfgnn::cuda
