// The edges of a row of GAT are walked in windows of up to 32 positions, whose ids a warp reads at once, a window ahead
// of their use.
//
// The entries of a window, (edge, head), are divided among all lanes: a lane works on one head, the same as when it
// adds rows, and on one edge in each step. What an entry needs is read once, when the window is opened, and kept in
// shared memory; the weights of a row's edges take its place once the row's turn comes, and all lanes read them from
// there. In slices of one head a lane has one entry, in registers. So nothing is computed twice in a slice, and sums
// over the edges of a row that need no features are made of as many parts as a head has lanes.
#pragma once

#include "frame.cuh"

namespace halfgnn::cuda {

template <class Config>
class GatWindow {
 public:
  using T = typename Config::Element;

  // words: the warp's, kGatEntries of each GatWord.
  __device__ GatWindow(const GatGather& gather, int slice, int lane, float* words)
      : frame(gather, slice, lane),
        words_(Config::kOneHead ? words : words + (frame.in_step() << frame.log2_heads()) + frame.head_in_warp()),
        base_(0),
        end_(0),
        column_(0),
        edge_(0),
        next_column_(0),
        next_edge_(0),
        dropped_(0) {}

  const GatFrame<Config> frame;

  // ---- Opening. The window is `size()` positions from `base()`; a place is a position relative to that.

  // The next window begins at `position`. Ids are read up to `end`.
  __device__ void start(uint32_t position, uint32_t end) {
    base_ = position - size();
    end_ = end;
    load_ids(position);
  }
  __device__ uint32_t size() const { return 1u << log2_size(); }
  __device__ uint32_t base() const { return base_; }
  __device__ bool is_open(uint32_t position) const { return position - base_ < size(); }

  // Opens the window at `position`: calls load(count as a constant, first step) for its steps, after which the words of
  // the lane's entries are there. The steps of a call are those whose random words lanes share.
  template <class Load>
  __device__ void open(uint32_t position, const Load& load) {
    if (base_ + size() != position) load_ids(position);
    base_ = position;
    take_ids();
    load_ids(position + size());
    open_steps(1 << (log2_size() - frame.log2_step()), load);
  }
  template <int kCount>
  struct Count {
    static constexpr int value = kCount;
  };

  // What edges have beside their nodes: logits, to the word kEdgeLogit of their entries, and what is dropped.
  template <int kCount>
  __device__ void load_edges(int step) {
    const GatGather& gather = frame.gather;
    if (!gather.needs_edges) return;
    uint32_t edge[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) edge[i] = of_step(edge_, step + i);
    if (gather.edge_logits != nullptr) {
      float own[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) own[i] = frame.load_logit_of(gather.edge_logits, edge[i]);
#pragma unroll
      for (int i = 0; i < kCount; ++i) word(kEdgeLogit, step + i) = own[i];
    }
    if (gather.dropout.is_on()) draw(step, edge);
  }

  // ---- Or the window is that of a row per group. Places are divided among the lanes in every step as before, so that
  // the edges of a group's row are at the places of its lanes: as many in each step as a head has lanes.

  // Edges of a row, at most.
  __device__ uint32_t row_size() const { return size() >> frame.log2_groups(); }
  __device__ int group_of_place(int place) const {
    return place >> frame.log2_lanes() & ((1 << frame.log2_groups()) - 1);
  }
  // Of a row of this lane's group.
  __device__ int place_of_edge(int edge) const {
    return place_in_first_group(edge) + (frame.group() << frame.log2_lanes());
  }
  __device__ int place_in_first_group(int edge) const {
    if constexpr (Config::kOneHead) return edge;
    return (edge >> frame.log2_lanes() << frame.log2_step()) + (edge & ((1 << frame.log2_lanes()) - 1));
  }
  // Reads ids for the next window; `piece`: the row of the group of this lane's place. If the row has no such edge, its
  // last one, or another edge of the graph.
  __device__ void load_ids_of_rows(const Piece& piece) {
    if (frame.gather.units.rows.num_edges == 0) return;
    const int own = frame.lane & ((1 << frame.log2_lanes()) - 1);
    const uint32_t edge = Config::kOneHead ? own : (frame.lane >> frame.log2_step() << frame.log2_lanes()) + own;
    const uint32_t last = max(piece.end, 1u) - 1;
    load_ids_at(min(piece.begin + edge, last));
  }
  // Opens that window, for rows of at most `longest` edges.
  template <class Load>
  __device__ void open_rows(int longest, const Load& load) {
    open_steps(steps_of_rows(longest), load);
  }
  // The edges of a batch are read together: entries past the end of a row are there, too.
  __device__ int steps_of_rows(int longest) const {
    constexpr int kBatch = Config::kUnroll;
    if constexpr (Config::kOneHead) return 1;
    const int edges = (longest + kBatch - 1) & ~(kBatch - 1);
    return (edges + (1 << frame.log2_lanes()) - 1) >> frame.log2_lanes();
  }
  // The ids that were read last are those of the window.
  __device__ void take_ids() {
    column_ = next_column_;
    edge_ = next_edge_;
  }

  // ---- The lane's entries.

  // The entries of some edges: of places [begin, end), or of a row per group.
  struct Entries {
    uint32_t own;     // number of the lane's edge of step 0
    int log2_step;    // edges of a step
    uint32_t count;   // edges
    int first, last;  // step
  };
  __device__ Entries entries_of_places(int begin, int end) const {
    return {static_cast<uint32_t>(frame.in_step() - begin), frame.log2_step(), static_cast<uint32_t>(end - begin),
            begin >> frame.log2_step(), (end - 1) >> frame.log2_step()};
  }
  __device__ Entries entries_of_rows(int degree, int longest) const {
    const int own = frame.lane & ((1 << frame.log2_lanes()) - 1);
    return {static_cast<uint32_t>(own), frame.log2_lanes(), static_cast<uint32_t>(degree), 0,
            steps_of_rows(longest) - 1};
  }
  // Calls use(step, whether the lane's edge is one of them) for all steps that have one. kUnrolls: whether the compiler
  // may work on several steps at once.
  template <bool kUnrolls = true, class Use>
  __device__ void for_each_step(const Entries& entries, const Use& use) {
    const auto use_step = [&](int step) { use(step, entries.own + (step << entries.log2_step) < entries.count); };
    const int first = entries.first, last = entries.last;
    if constexpr (Config::kOneHead) {
      use(0, entries.own < entries.count);
    } else if constexpr (kUnrolls) {
      for (int step = first; step <= last; ++step) use_step(step);
    } else {
#pragma unroll 1
      for (int step = first; step <= last; ++step) use_step(step);
    }
  }
  __device__ float& word(int which, int step) {
    if constexpr (Config::kOneHead) return own_words_[which];
    return words_[which * kGatEntries + step * kWarpSize];
  }
  __device__ uint32_t column_of_step(int step) const { return of_step(column_, step); }
  // s_e, of which the word kNodeLogit is the column's part, and `row_logit` the row's. Added in the same order whatever
  // adjacency is walked, so that both find the same sign.
  __device__ float logit_sum(int step, float row_logit) {
    const float sum = word(kNodeLogit, step) + row_logit;
    return frame.gather.edge_logits != nullptr ? sum + word(kEdgeLogit, step) : sum;
  }
  // m_e.
  __device__ float multiplier(int step) const {
    if (!frame.gather.dropout.is_on()) return 1.f;
    return (dropped_ >> step & 1u) != 0 ? 0.f : frame.gather.dropout.scale;
  }
  // Weights of edges that are not positive are stored with a minus: one word says both.
  static __device__ float with_sign(float weight, bool is_positive) {
    return !Config::kPositive && !Config::kDots ? weight : is_positive ? weight : -weight;
  }

  // ---- All entries of the lane's head, by place.

  // What lanes write of their entries is for all lanes from here on.
  __device__ void share() const {
    if constexpr (!Config::kOneHead) __syncwarp();
  }
  __device__ float word_at(int which, int place) const {
    return words_[which * kGatEntries + (place << frame.log2_heads()) - (frame.in_step() << frame.log2_heads())];
  }
  __device__ float weight_at(int place) const {
    if constexpr (Config::kOneHead) return __shfl_sync(kFullMask, own_words_[kWeight], place);
    return word_at(kWeight, place);
  }
  __device__ uint32_t column_at(int place) const { return __shfl_sync(kFullMask, column_, place); }
  __device__ uint32_t edge_at(int place) const { return __shfl_sync(kFullMask, edge_, place); }

 private:
  __device__ int log2_size() const { return min(kLog2GatEntries - frame.log2_heads(), kLog2Warp); }

  template <class Load>
  __device__ void open_steps(int steps, const Load& load) {
    dropped_ = 0;
    if (Config::kOneHead || steps == 1) {
      load(Count<1>{}, 0);
    } else if (steps == 2) {
      load(Count<2>{}, 0);
    } else {
      for (int step = 0; step < steps; step += 4) load(Count<4>{}, step);
    }
  }

  // Of the position from + lane, for the window after this one. Past the last position, that one again.
  __device__ void load_ids(uint32_t from) {
    if (from < end_) load_ids_at(min(from + frame.lane, end_ - 1));
  }
  __device__ void load_ids_at(uint32_t position) {
    const GatGather& gather = frame.gather;
    next_column_ = gather.columns.id(position);
    if (gather.needs_edges) next_edge_ = gather.edge_ids.id(position);
  }

  // The value of the lane's edge of a step; `values`: one per position.
  template <typename Value>
  __device__ Value of_step(Value values, int step) const {
    return Config::kOneHead ? values : __shfl_sync(kFullMask, values, (step << frame.log2_step()) + frame.in_step());
  }

  // One call gives the words of four heads, whose lanes share it: of kCount lanes with heads beside each other each
  // calls for another step.
  template <int kCount>
  __device__ void draw(int step, const uint32_t (&edge)[kCount]) {
    const int caller = frame.head_in_warp() & (kCount - 1);
    uint32_t own = edge[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) own = caller == i ? edge[i] : own;
    uint32_t bits = frame.gather.dropout.dropped(own, static_cast<uint32_t>(frame.head()) >> 2) << (4 * caller);
#pragma unroll
    for (int i = 1; i < kCount; i *= 2) bits |= __shfl_xor_sync(kFullMask, bits, i << frame.log2_lanes());
#pragma unroll
    for (int i = 0; i < kCount; ++i) dropped_ |= (bits >> (4 * i + (frame.head() & 3)) & 1u) << (step + i);
  }

  float* const words_;  // from those of the lane's entry of step 0
  float own_words_[Config::kOneHead ? kGatBackwardWords : 1];
  uint32_t base_, end_;
  uint32_t column_, edge_;            // at the lane's place
  uint32_t next_column_, next_edge_;  // of the next window
  uint32_t dropped_;                  // bit i: the lane's entry of step i is
};

}  // namespace halfgnn::cuda
