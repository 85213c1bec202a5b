// What the forward and the backward of GAT share: rows of features, gathered and added up with a weight that depends on
// the edge and the head. Include only where kernels are instantiated.
//
// A warp takes a piece of a long row, or some consecutive short rows, in one slice: the heads and, of wide heads, the
// tile that fit the warp (heads.cuh). It walks the positions of its rows in windows, of which it reads the ids at once,
// a window ahead of their use. The (edge, head) pairs of a window are divided among all lanes: a lane works on one
// head, the same as when it adds, and on one edge in each step. What a pair needs is read once, when the window is
// opened, and kept in shared memory; the weights of a row's edges take its place once the row's turn comes, and all
// lanes read them from there. In slices of one head a lane has one pair, in registers. So nothing is computed twice in
// a slice, and sums over the edges of a row that need no features are made of as many parts as a head has lanes.
#pragma once

#include "gat_attention_plan.h"

namespace halfgnn::cuda {

// Words of a pair: what is known of it when its window is opened, and what its row makes of it.
enum GatWord { kNodeLogit = 0, kEdgeLogit = 1, kLse = 2, kDelta = 3, kWeight = 0, kShare = 1 };
constexpr int kGatForwardWords = 2, kGatBackwardWords = 4;

// Of a window, at most; the edges of a window are as many as fit, and 32 at most.
constexpr int kGatPairs = 256;
constexpr int kLog2GatPairs = 8;
constexpr int kGatWarps = 4;
constexpr int kGatThreads = kGatWarps * kWarpSize;

// From sm_90 on more of what a warp shares is kept once a warp.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kGatOlder = 1;
#else
constexpr int kGatOlder = 0;
#endif

template <typename T, int kVectorElements, int kVectorsPerLane, GatSums kWhich, bool kIsOneHead = false>
struct GatConfig {
  using Element = T;
  static constexpr int kVector = kVectorElements;
  static constexpr int kRepeat = kVectorsPerLane;
  static constexpr bool kPositive = kWhich == GatSums::kPositive;
  static constexpr bool kDots = kWhich == GatSums::kDots;
  // Slices of one head: a pair a position, so that its lane keeps what is known of it in registers.
  static constexpr bool kOneHead = kIsOneHead;
  static constexpr int kUnroll = 4;  // edges of a group in flight
  // Registers hold those edges, the sums, and what the lane knows of the window: 64 where there is one sum, 80 with two
  // or with dots; 8 to 32 more with narrow accesses, and before sm_90.
  static constexpr int kNarrow = kRepeat == 1 ? 0 : kRepeat == 4 && (kDots || (kGatOlder && !kPositive)) ? 2 : 1;
  static constexpr int kMinBlocks = (kPositive || kDots ? 6 - kGatOlder : 8 - 2 * kGatOlder) - kNarrow;
};

struct GatGather {
  Rows rows;
  Ids columns;
  Ids edge_ids;
  HeadLayout layout;
  const void* source;     // rows that are gathered
  uint32_t row_elements;  // heads * dim
  bool needs_edges;       // ids of edges: for logits or dropout
  bool logit_is_float;
  const void* edge_logits;
  float slope;
  DropoutMask dropout;
  int32_t log2_rows;
  uint32_t num_units;
  uint32_t unit_blocks;  // that cover all units, for one slice
};

template <typename T>
__device__ float load_logit(const void* data, bool is_float, uint64_t i) {
  if (is_float) return __ldg(static_cast<const float*>(data) + i);
  return Fragment<T, 1>::load(static_cast<const T*>(data) + i).value();
}

// A whole row, or a piece of one. Positions are below 2^32.
struct GatPiece {
  uint32_t row;
  uint32_t begin, end;
  uint32_t slot;
  bool is_whole_row;
};

template <class Config>
class GatLane {
 public:
  using T = typename Config::Element;
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;
  using Row = Fragment<T, kVector>;

  // position: the first of the warp's.
  __device__ GatLane(const GatGather& gather, int slice, int lane, float* pairs, uint32_t position)
      : gather_(gather),
        lane_(lane),
        pairs_(Config::kOneHead ? pairs : pairs + (in_step() << log2_heads()) + head_in_warp()),
        base_(position - window()),
        column_(0),
        edge_(0),
        next_column_(0),
        next_edge_(0),
        dropped_(0) {
    const HeadLayout& layout = gather.layout;
    const int tile = slice % layout.tiles;
    const HeadLane work(layout, slice / layout.tiles, lane);
    const HeadVectors<kRepeat> vectors(layout, work, tile);
    head_ = work.read(layout);
    // Packed, since they are rarely needed.
    const int in_dot = work.exists(layout) ? vectors.count + 1 : 0;
    const bool writes = work.exists(layout) && work.group == 0;
    facts_ = tile << 5 | (writes && work.own == 0 ? 16 : 0) | (writes ? 8 : 0) | in_dot;
#pragma unroll
    for (int r = 1; r < kRepeat; ++r) distance_[r - 1] = (vectors.index[r] - vectors.index[0]) * kVector;
    source_ = as_computed(static_cast<const char*>(gather.source) +
                          vectors.index[0] * static_cast<uint32_t>(kVector * sizeof(T)));
    load_ids(position);
  }

 protected:
  // ---- the division of labour

  __device__ int log2_lanes() const { return gather_.layout.log2_lanes; }
  __device__ int log2_heads() const { return Config::kOneHead ? 0 : gather_.layout.log2_heads; }
  __device__ int log2_groups() const { return 5 - log2_lanes() - log2_heads(); }
  __device__ int log2_step() const { return 5 - log2_heads(); }  // edges of a step
  __device__ int log2_window() const { return min(kLog2GatPairs - log2_heads(), 5); }
  __device__ uint32_t window() const { return 1u << log2_window(); }
  __device__ int group() const { return lane_ >> (log2_lanes() + log2_heads()); }
  __device__ int head_in_warp() const { return lane_ >> log2_lanes() & ((1 << log2_heads()) - 1); }
  // Which edge of a step is this lane's.
  __device__ int in_step() const {
    if constexpr (Config::kOneHead) return lane_;
    return group() << log2_lanes() | (lane_ & ((1 << log2_lanes()) - 1));
  }
  __device__ int tile() const { return facts_ >> 5; }
  // Results of a row, head and tile.
  __device__ bool writes_head() const { return (facts_ & 16) != 0; }
  // Vectors of the lane; padded heads have none.
  __device__ bool head_exists() const { return (facts_ & 7) != 0; }
  __device__ int num_read() const { return (facts_ & 7) - 1; }
  __device__ int num_written() const { return (facts_ & 8) != 0 ? num_read() : 0; }
  // The lane's first element of a row.
  __device__ uint32_t first() const {
    return static_cast<uint32_t>(source_ - static_cast<const char*>(gather_.source)) / sizeof(T);
  }
  __device__ uint64_t head_of(uint32_t node) const {
    return static_cast<uint64_t>(node) * static_cast<uint32_t>(gather_.layout.heads) + static_cast<uint32_t>(head_);
  }

  // Over the lanes of a head, those of all groups.
  template <class Operation>
  __device__ float over_edges(float value, Operation operation) const {
    const int head_bits = ((1 << log2_heads()) - 1) << log2_lanes();
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      if ((head_bits & distance) == 0) value = operation(value, __shfl_xor_sync(kFullMask, value, distance));
    }
    return value;
  }
  // Of values that are not nan.
  __device__ float max_over_edges(float value) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (Config::kOneHead) {  // in the order of signed integers
      const int bits = __float_as_int(value);
      const int most = __reduce_max_sync(kFullMask, bits ^ (bits >> 31 & 0x7fffffff));
      return __int_as_float(most ^ (most >> 31 & 0x7fffffff));
    }
#endif
    return over_edges(value, [](float a, float b) { return fmaxf(a, b); });
  }
  __device__ float sum_over_edges(float value) const {
    return over_edges(value, [](float a, float b) { return a + b; });
  }
  // Over the lanes of a head in one group.
  __device__ float sum_over_lanes(float value) const {
    for (int distance = 1; distance < 1 << log2_lanes(); distance *= 2) {
      value += __shfl_xor_sync(kFullMask, value, distance);
    }
    return value;
  }

  // ---- windows

  // Of the position from + lane, for the window after this one. Past the last position, that one again.
  __device__ void load_ids(uint32_t from) {
    const auto num_edges = static_cast<uint32_t>(gather_.rows.num_edges);
    if (from >= num_edges) return;
    const uint32_t position = from + lane_ < num_edges ? from + lane_ : num_edges - 1;
    next_column_ = gather_.columns.id(position);
    if (gather_.needs_edges) next_edge_ = gather_.edge_ids.id(position);
  }
  __device__ bool is_open(uint32_t position) const { return position - base_ < window(); }

  // Opens the window at `position`: calls load(count as a constant, first step) for its steps, after which what the
  // lane needs of its pairs is in pairs_. The steps of a call are those whose random words lanes share.
  template <class Load>
  __device__ void open_window(uint32_t position, const Load& load) {
    if (base_ + window() != position) load_ids(position);
    base_ = position;
    column_ = next_column_;
    edge_ = next_edge_;
    load_ids(position + window());
    dropped_ = 0;
    const int steps = 1 << (log2_window() - log2_step());
    if (steps == 1) {
      load(Count<1>{}, 0);
    } else if (steps == 2) {
      load(Count<2>{}, 0);
    } else {
      for (int step = 0; step < steps; step += 4) load(Count<4>{}, step);
    }
  }
  template <int kCount>
  struct Count {
    static constexpr int value = kCount;
  };

  __device__ int place(int step) const { return (step << log2_step()) + in_step(); }
  __device__ float& pair(int which, int step) {
    if constexpr (Config::kOneHead) return own_pair_[which];
    return pairs_[which * kGatPairs + step * kWarpSize];
  }
  // Of the lane's edges of a step, one value each.
  template <typename Value>
  __device__ Value of_step(Value values, int step) const {
    return Config::kOneHead ? values : __shfl_sync(kFullMask, values, place(step));
  }
  // What lanes write of their pairs is for all lanes from here on.
  __device__ void share_pairs() const {
    if constexpr (!Config::kOneHead) __syncwarp();
  }
  __device__ float word_at(int which, int at) const {
    return pairs_[which * kGatPairs + (at << log2_heads()) - (in_step() << log2_heads())];
  }
  // The weight of the edge at a place.
  __device__ float weight_at(int at) const {
    if constexpr (Config::kOneHead) return __shfl_sync(kFullMask, own_pair_[kWeight], at);
    return word_at(kWeight, at);
  }

  // What edges have beside their nodes: logits, to the word kEdgeLogit of their pairs, and what is dropped.
  template <int kCount>
  __device__ void load_edges(int step) {
    if (!gather_.needs_edges) return;
    uint32_t edge[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) edge[i] = of_step(edge_, step + i);
    if (gather_.edge_logits != nullptr) {
      float own[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        own[i] = load_logit<T>(gather_.edge_logits, gather_.logit_is_float, head_of(edge[i]));
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) pair(kEdgeLogit, step + i) = own[i];
    }
    if (gather_.dropout.is_on()) draw(step, edge);
  }
  // s_e of the lane's edge, of which the word kNodeLogit is the column's part, and `own` the row's. Added in the same
  // order whatever adjacency is walked, so that both find the same sign.
  __device__ float logit_sum(int step, float own) {
    const float sum = pair(kNodeLogit, step) + own;
    return gather_.edge_logits != nullptr ? sum + pair(kEdgeLogit, step) : sum;
  }

  // One call gives the words of four heads, whose lanes share it: of kCount lanes with heads beside each other each
  // calls for another step.
  template <int kCount>
  __device__ void draw(int step, const uint32_t (&edge)[kCount]) {
    const int caller = head_in_warp() & (kCount - 1);
    uint32_t own = edge[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) own = caller == i ? edge[i] : own;
    uint32_t bits = gather_.dropout.dropped(own, static_cast<uint32_t>(head_) >> 2) << (4 * caller);
#pragma unroll
    for (int i = 1; i < kCount; i *= 2) bits |= __shfl_xor_sync(kFullMask, bits, i << log2_lanes());
#pragma unroll
    for (int i = 0; i < kCount; ++i) dropped_ |= (bits >> (4 * i + (head_ & 3)) & 1u) << (step + i);
  }
  __device__ float kept(int step) const {
    if (!gather_.dropout.is_on()) return 1.f;
    return (dropped_ >> step & 1u) != 0 ? 0.f : gather_.dropout.scale;
  }

  // Calls use(step, whether the lane's edge is one of them) for all steps that have places of [begin, end).
  template <class Use>
  __device__ void for_each_step(int begin, int end, const Use& use) {
    const auto own = static_cast<uint32_t>(in_step() - begin), count = static_cast<uint32_t>(end - begin);
    if constexpr (Config::kOneHead) {
      use(0, own < count);
    } else {
      const int last = (end - 1) >> log2_step();
      for (int step = begin >> log2_step(); step <= last; ++step) use(step, own + (step << log2_step()) < count);
    }
  }

  // Weights of edges that are not positive are stored with a minus: one word says both.
  static __device__ float with_sign(float weight, bool is_positive) {
    return !Config::kPositive && !Config::kDots ? weight : is_positive ? weight : -weight;
  }

  // ---- sums

  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sum_[r][i] = 0.f;
        if constexpr (Config::kPositive) positive_[r][i] = 0.f;
      }
    }
  }
  __device__ void multiply(float factor) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sum_[r][i] *= factor;
        if constexpr (Config::kPositive) positive_[r][i] *= factor;
      }
    }
  }

  // Adds the edges at places [begin, end) of the window, whose weights are in pairs_.
  template <class Use>
  __device__ void add_edges(int begin, int end, const Use& use_dots) {
    constexpr int kUnroll = Config::kUnroll;
    const int groups = 1 << log2_groups(), batch = kUnroll * groups;
    int start = begin;
    for (; start + batch <= end; start += batch) add_batch<kUnroll, true>(start, end, use_dots);
    for (; start + groups < end; start += batch) add_batch<kUnroll, false>(start, end, use_dots);
    if (start < end) add_batch<1, false>(start, end, use_dots);
  }

  // kEdges edges of every group. All loads are issued before the first addition. If the batch is not kFull, a place
  // past the last edge reads that edge's row again and adds 0.
  template <int kEdges, bool kFull, class Use>
  __device__ void add_batch(int start, int end, const Use& use_dots) {
    const uint32_t row_bytes = gather_.row_elements * static_cast<uint32_t>(sizeof(T));
    const int own = start + group(), groups = 1 << log2_groups();
    Row rows[kEdges][kRepeat];
    float all[kEdges], positive[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int wanted = own + u * groups, at = kFull || wanted < end ? wanted : end - 1;
      const char* row = source_ + static_cast<uint64_t>(__shfl_sync(kFullMask, column_, at)) * row_bytes;
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) rows[u][r] = Row::load(row + distance(r) * sizeof(T));
      const float weight = weight_at(at);
      all[u] = kFull || wanted < end ? weight : 0.f;
    }
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      positive[u] = fmaxf(all[u], 0.f);
      if constexpr (Config::kPositive || Config::kDots) all[u] = fabsf(all[u]);
      if constexpr (!kFull) {
#pragma unroll
        for (int r = 0; r < kRepeat; ++r) rows[u][r].keep_if(own + u * groups < end);
      }
    }
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) add_rows<kEdges>(r, rows, all, positive);
    if constexpr (Config::kDots) {
      float dot[kEdges];
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        dot[u] = 0.f;
#pragma unroll
        for (int r = 0; r < kRepeat; ++r) {
          float own_row[kVector];
          own_[r].widen(own_row);
          const float part = add_dot<T, kVector>(own_row, rows[u][r], dot[u]);
          dot[u] = r < num_read() ? part : dot[u];
        }
      }
      sum_over_head(dot, log2_lanes(), lane_);
      HeadLane work(gather_.layout, 0, lane_);
      work.head = head_exists() ? head_ : gather_.layout.heads;
      for_each_owned<kEdges>(gather_.layout, work, [&](int i, int in_batch, bool owns) {
        const int at = start + in_batch;
        const uint32_t edge = __shfl_sync(kFullMask, edge_, at < end ? at : end - 1);
        if (owns && at < end) use_dots(edge, at, dot[i]);
      });
    }
  }

  // In fp32 the rows of a batch are summed before they join the sum, which rounds less.
  template <int kEdges>
  __device__ void add_rows(int r, const Row (&rows)[kEdges][kRepeat], const float (&all)[kEdges],
                           const float (&positive)[kEdges]) {
    constexpr bool kSumsBatch = sizeof(T) == sizeof(float) && kEdges > 1;
    float values[kEdges][kVector];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) rows[u][r].widen(values[u]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      float batch = kSumsBatch ? 0.f : sum_[r][i];
#pragma unroll
      for (int u = 0; u < kEdges; ++u) batch = fmaf(all[u], values[u][i], batch);
      sum_[r][i] = kSumsBatch ? sum_[r][i] + batch : batch;
      if constexpr (Config::kPositive) {
        float part = kSumsBatch ? 0.f : positive_[r][i];
#pragma unroll
        for (int u = 0; u < kEdges; ++u) part = fmaf(positive[u], values[u][i], part);
        positive_[r][i] = kSumsBatch ? positive_[r][i] + part : part;
      }
    }
  }

  // In a fixed order; every group ends up with the sum.
  __device__ void sum_over_groups() {
    for (int distance = 1 << (5 - log2_groups()); distance < kWarpSize; distance *= 2) {
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          sum_[r][i] += __shfl_xor_sync(kFullMask, sum_[r][i], distance);
          if constexpr (Config::kPositive) positive_[r][i] += __shfl_xor_sync(kFullMask, positive_[r][i], distance);
        }
      }
    }
  }

  // Calls store(r, element of a row of features) for the vectors that this lane writes.
  template <class Store>
  __device__ void for_each_result(const Store& store) const {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      if (r < num_written()) store(r, first() + distance(r));
    }
  }
  __device__ void store_partial(const AttentionPartials& partials, const GatPiece& piece) const {
    for_each_result([&](int r, uint32_t at) {
      store_rounded(partials.vector(piece.slot, gather_.row_elements, 0) + at, sum_[r]);
      if constexpr (Config::kPositive) {
        store_rounded(partials.vector(piece.slot, gather_.row_elements, 1) + at, positive_[r]);
      }
    });
  }

  // Elements from the lane's first vector to its r-th.
  __device__ uint32_t distance(int r) const { return r == 0 ? 0 : distance_[r - 1]; }

  const GatGather& gather_;
  const int lane_;
  float* const pairs_;  // of this warp, from the lane's pair of step 0
  float own_pair_[Config::kOneHead ? kGatBackwardWords : 1];
  int head_;   // to read
  int facts_;  // see the constructor
  uint32_t distance_[kRepeat > 1 ? kRepeat - 1 : 1];
  const char* source_;
  uint32_t base_;  // of the window: its first position
  uint32_t column_, edge_, next_column_, next_edge_;
  uint32_t dropped_;                      // bit i: the pair of step i is
  Row own_[Config::kDots ? kRepeat : 1];  // of the row of the result
  float sum_[kRepeat][kVector];
  float positive_[Config::kPositive ? kRepeat : 1][Config::kPositive ? kVector : 1];
};

// Has `lane` work on all that this warp has to do: lane.run(piece) for its pieces, in order. `make` makes it, for a
// slice.
template <class Make>
__device__ void for_each_gat_piece(const GatGather& gather, int lane, const Make& make) {
  const uint32_t slices = static_cast<uint32_t>(gather.layout.slices) * static_cast<uint32_t>(gather.layout.tiles);
  const uint32_t block = gather.layout.by_slice ? blockIdx.x % gather.unit_blocks : blockIdx.x / slices;
  const auto slice = static_cast<int>(gather.layout.by_slice ? blockIdx.x / gather.unit_blocks : blockIdx.x % slices);
  // The same in all lanes, as the compiler now knows.
  const uint32_t unit = __shfl_sync(kFullMask, block * kGatWarps + threadIdx.x / kWarpSize, 0);
  if (unit >= gather.num_units) return;  // whole warps
  const Rows& rows = gather.rows;
  const bool is_slot = unit < rows.num_slots;
  uint32_t row, offset;  // offset: where row + lane starts
  if (is_slot) {
    Piece piece;
    if (!find_piece(rows, unit, lane, piece)) return;
    row = static_cast<uint32_t>(piece.row);
    offset = static_cast<uint32_t>(lane == 0 ? piece.begin : piece.end);
  } else {
    const int64_t first = static_cast<int64_t>(unit - rows.num_slots) << gather.log2_rows;
    row = static_cast<uint32_t>(first);
    offset = static_cast<uint32_t>(rows.indptr.offset(first + lane < rows.num_rows ? first + lane : rows.num_rows));
  }
  uint32_t begin = __shfl_sync(kFullMask, offset, 0);
  auto work = make(slice, row, begin);
  const int count = is_slot ? 1 : 1 << gather.log2_rows;
  for (int i = 0; i < count && row + i < rows.num_rows; ++i) {
    const uint32_t end = __shfl_sync(kFullMask, offset, i + 1);
    const bool skips = !is_slot && rows.is_long(end - begin);
    work.run({row + i, begin, end, unit, !is_slot}, skips);
    begin = end;
  }
}

inline int64_t gat_blocks(const GatPlan& plan) { return ceil_div(plan.num_units, kGatWarps) * plan.slices(); }

// Calls run(config) with the configuration that a plan asks for.
template <typename T, GatSums kSums, class Run>
cudaError_t with_gat_config(const GatPlan& plan, const Run& run) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  if (plan.vector == widest) {
    if constexpr (kSums != GatSums::kDots) {
      if (plan.layout.log2_heads == 0) return run(GatConfig<T, widest, 1, kSums, true>{});
    }
    return run(GatConfig<T, widest, 1, kSums>{});
  }
  if (plan.vector == widest / 2) return run(GatConfig<T, widest / 2, 2, kSums>{});
  if constexpr (widest == 8) {
    if (plan.vector == 2) return run(GatConfig<T, 2, 4, kSums>{});
  }
  return run(GatConfig<T, 1, 4, kSums>{});
}

inline GatGather gat_gather(const GatArgs& args, const GatPlan& plan, const void* source) {
  GatGather gather{};
  gather.rows = plan.rows;
  gather.columns = indices_of(args.topology);
  gather.edge_ids = edge_ids_of(args.topology);
  gather.layout = plan.layout;
  gather.source = source;
  gather.row_elements = static_cast<uint32_t>(args.heads * args.dim);
  gather.needs_edges = args.edge_logits != nullptr || args.dropout.seed != nullptr;
  gather.logit_is_float = args.logit_type == DType::kFloat;
  gather.edge_logits = args.edge_logits;
  gather.slope = static_cast<float>(args.negative_slope);
  gather.dropout = mask_of(args.dropout);
  gather.log2_rows = plan.log2_rows;
  gather.num_units = static_cast<uint32_t>(plan.num_units);
  gather.unit_blocks = static_cast<uint32_t>(ceil_div(plan.num_units, kGatWarps));
  return gather;
}

}  // namespace halfgnn::cuda
