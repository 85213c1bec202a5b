// A lane's sums of weight * row over the edges of a row of GAT and, beside them, those of the edges with a positive s_e
// or the dots of every edge's row with the row's own.
#pragma once

#include "window.cuh"

namespace halfgnn::cuda {

template <class Config>
class GatRowSums {
 public:
  using T = typename Config::Element;
  using Row = typename Config::Row;
  using Frame = GatFrame<Config>;
  using Window = GatWindow<Config>;
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;

  float sum[kRepeat][kVector];
  float positive[Config::kPositive ? kRepeat : 1][Config::kPositive ? kVector : 1];
  Row own[Config::kDots ? kRepeat : 1];  // the row of the result

  __device__ void clear() {
    for_each([](float& value) { value = 0.f; });
  }
  __device__ void multiply(float factor) {
    for_each([&](float& value) { value *= factor; });
  }

  // Adds the edges at places [begin, end) of the window, whose weights are there. Calls use_dot(edge, place, dot) in
  // one of the lanes that have the dot.
  template <class Use>
  __device__ void add_edges(const Window& window, int begin, int end, const Use& use_dot) {
    constexpr int kUnroll = Config::kUnroll;
    const int groups = 1 << window.frame.log2_groups(), batch = kUnroll * groups;
    int start = begin;
    for (; start + batch <= end; start += batch) add_batch<kUnroll, true>(window, start, end, use_dot);
    for (; start + groups < end; start += batch) add_batch<kUnroll, false>(window, start, end, use_dot);
    if (start < end) add_batch<1, false>(window, start, end, use_dot);
  }

  // Adds the edges of a row per group, which has `degree` of them; the longest row has `longest`.
  __device__ void add_rows_of_groups(const Window& window, int degree, int longest) {
    constexpr int kUnroll = Config::kUnroll;
    int edge = 0;
    for (; edge + 1 < longest; edge += kUnroll) {
      if (__all_sync(kFullMask, edge + kUnroll <= degree)) {
        add_batch_of_groups<kUnroll, true>(window, edge, degree);
      } else {
        add_batch_of_groups<kUnroll, false>(window, edge, degree);
      }
    }
    if (edge < longest) add_batch_of_groups<1, false>(window, edge, degree);
  }

  // In a fixed order; every group ends up with the sum.
  __device__ void sum_over_groups(const Frame& frame) {
    for (int distance = 1 << (kLog2Warp - frame.log2_groups()); distance < kWarpSize; distance *= 2) {
      for_each([&](float& value) { value += __shfl_xor_sync(kFullMask, value, distance); });
    }
  }

  // Leaves the sums of a piece of a long row, with what the caller says of its weights.
  __device__ void store_partial(const Frame& frame, const Piece& piece, const PieceSums& of_weights) const {
    const GatGather& gather = frame.gather;
    const AttentionPartials& partials = gather.partials;
    if (frame.is_first_group() && frame.writes_whole_head()) {
      partials.store_sums(piece.line, gather.layout.heads, frame.head(), of_weights);
    }
    frame.for_each_result(frame.is_first_group(), [&](int r, uint32_t at) {
      store_rounded(partials.vector(piece.line, gather.row_elements, 0) + at, sum[r]);
      if constexpr (Config::kPositive) {
        store_rounded(partials.vector(piece.line, gather.row_elements, 1) + at, positive[r]);
      }
    });
  }

 private:
  template <class Use>
  __device__ void for_each(const Use& use) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        use(sum[r][i]);
        if constexpr (Config::kPositive) use(positive[r][i]);
      }
    }
  }

  // kEdges edges of every group. All loads are issued before the first addition. If the batch is not kFull, a place
  // past the last edge reads that edge's row again and adds 0.
  template <int kEdges, bool kFull, class Use>
  __device__ void add_batch(const Window& window, int start, int end, const Use& use_dot) {
    const Frame& frame = window.frame;
    const int own_place = start + frame.group(), groups = 1 << frame.log2_groups();
    Row rows[kEdges][kRepeat];
    float all[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int wanted = own_place + u * groups, place = kFull || wanted < end ? wanted : end - 1;
      const char* row = frame.source_row(window.column_at(place));
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) rows[u][r] = Row::load(row + frame.distance(r) * sizeof(T));
      const float weight = window.weight_at(place);
      all[u] = kFull || wanted < end ? weight : 0.f;
    }
    if constexpr (!kFull) {
#pragma unroll
      for (int u = 0; u < kEdges; ++u) keep_if(own_place + u * groups < end, rows[u]);
    }
    add_rows<kEdges>(rows, all);
    if constexpr (Config::kDots) find_dots<kEdges>(window, rows, start, end, use_dot);
  }

  // The same for kEdges edges of each group's row, from edge `first` on, a multiple of kEdges. The weight of an entry
  // past the row's end is 0.
  template <int kEdges, bool kFull>
  __device__ void add_batch_of_groups(const Window& window, int first, int degree) {
    const int first_place = window.place_of_edge(first);
    Row rows[kEdges][kRepeat];
    float weights[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      const int place = first_place + window.place_in_first_group(u);
      const char* row = window.frame.source_row(window.column_at(place));
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) rows[u][r] = Row::load(row + window.frame.distance(r) * sizeof(T));
      weights[u] = window.weight_at(place);
    }
    if constexpr (!kFull) {
#pragma unroll
      for (int u = 0; u < kEdges; ++u) keep_if(first + u < degree, rows[u]);
    }
    add_rows<kEdges>(rows, weights);
  }

  static __device__ void keep_if(bool keep, Row (&row)[kRepeat]) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) row[r].keep_if(keep);
  }

  template <int kEdges>
  __device__ void add_rows(const Row (&rows)[kEdges][kRepeat], const float (&weights)[kEdges]) {
    float all[kEdges], of_positive[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      of_positive[u] = fmaxf(weights[u], 0.f);
      all[u] = Config::kPositive || Config::kDots ? fabsf(weights[u]) : weights[u];
    }
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) add_vectors<kEdges>(r, rows, all, of_positive);
  }

  // In fp32 the rows of a batch are summed before they join the sum, which rounds less.
  template <int kEdges>
  __device__ void add_vectors(int r, const Row (&rows)[kEdges][kRepeat], const float (&all)[kEdges],
                              const float (&of_positive)[kEdges]) {
    constexpr bool kSumsBatch = sizeof(T) == sizeof(float) && kEdges > 1;
    float values[kEdges][kVector];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) rows[u][r].widen(values[u]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      float batch = kSumsBatch ? 0.f : sum[r][i];
#pragma unroll
      for (int u = 0; u < kEdges; ++u) batch = fmaf(all[u], values[u][i], batch);
      sum[r][i] = kSumsBatch ? sum[r][i] + batch : batch;
      if constexpr (Config::kPositive) {
        float part = kSumsBatch ? 0.f : positive[r][i];
#pragma unroll
        for (int u = 0; u < kEdges; ++u) part = fmaf(of_positive[u], values[u][i], part);
        positive[r][i] = kSumsBatch ? positive[r][i] + part : part;
      }
    }
  }

  template <int kEdges, class Use>
  __device__ void find_dots(const Window& window, const Row (&rows)[kEdges][kRepeat], int start, int end,
                            const Use& use_dot) const {
    const Frame& frame = window.frame;
    const HeadLayout& layout = frame.gather.layout;
    float dot[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      dot[u] = 0.f;
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        float own_row[kVector];
        own[r].widen(own_row);
        const float part = add_dot<T, kVector>(own_row, rows[u][r], dot[u]);
        dot[u] = r < frame.num_read() ? part : dot[u];
      }
    }
    sum_over_head(dot, frame.log2_lanes(), frame.lane);
    HeadLane work(layout, 0, frame.lane);
    work.head = frame.head_exists() ? frame.head() : layout.heads;
    for_each_owned<kEdges>(layout, work, [&](int i, int in_batch, bool owns) {
      const int place = start + in_batch;
      const uint32_t edge = window.edge_at(place < end ? place : end - 1);
      if (owns && place < end) use_dot(edge, place, dot[i]);
    });
  }
};

}  // namespace halfgnn::cuda
