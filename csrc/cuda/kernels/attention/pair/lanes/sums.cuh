// A lane's sums of factor * row over the edges of a row, for GATv2 and dot attention.
//
// Edges of a batch are summed first, unless they join the run at once, batches in a run, and runs in a total
// (core/running_sum.cuh).
#pragma once

#include "../../../core/running_sum.cuh"
#include "../../../core/softmax.cuh"
#include "own_row.cuh"

namespace halfgnn::cuda {

// Terms of a sum that a lane adds up before they join its total.
constexpr int kPairRun = 128;

// A lane's sums of the run that it is in. If a batch has enough edges to make up for the accesses they are kept in
// shared memory, interleaved by lane. That leaves the registers to the rows in flight.
template <class Config, bool kShared = Config::kRunsAreShared>
class PairRuns {
 public:
  static constexpr int kVector = Config::kVector;
  struct Shared {};
  __device__ explicit PairRuns(Shared&) {}
  __device__ void load(int s, int r, float (&sum)[kVector]) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] = sum_[s][r][i];
  }
  __device__ void store(int s, int r, const float (&sum)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum_[s][r][i] = sum[i];
  }

 private:
  float sum_[Config::kSums][Config::kRepeat][kVector];
};
template <class Config>
class PairRuns<Config, true> {
 public:
  static constexpr int kVector = Config::kVector;
  static constexpr int kAccess = kVector < 4 ? kVector : 4;
  static constexpr int kAccesses = kVector / kAccess;
  struct alignas(kAccess * sizeof(float)) Access {
    float value[kAccess];
  };
  using Shared = Access[Config::kSums][Config::kRepeat][kAccesses][Config::kThreads];

  __device__ explicit PairRuns(Shared& shared) : shared_(shared) {}
  __device__ void load(int s, int r, float (&sum)[kVector]) const {
#pragma unroll
    for (int a = 0; a < kAccesses; ++a) {
      const Access access = shared_[s][r][a][threadIdx.x];
#pragma unroll
      for (int i = 0; i < kAccess; ++i) sum[a * kAccess + i] = access.value[i];
    }
  }
  __device__ void store(int s, int r, const float (&sum)[kVector]) {
#pragma unroll
    for (int a = 0; a < kAccesses; ++a) {
      Access access;
#pragma unroll
      for (int i = 0; i < kAccess; ++i) access.value[i] = sum[a * kAccess + i];
      shared_[s][r][a][threadIdx.x] = access;
    }
  }

 private:
  Shared& shared_;
};

// Sums are relative to the running maximum in the forward. What is said of rows holds for the sum of factors too, which
// PairWeights keeps.
template <class Config>
class PairSums {
  using T = typename Config::Element;
  using Score = typename Config::Score;
  using Edges = typename Config::Edges;
  using Runs = PairRuns<Config>;
  static constexpr int kVector = Config::kVector;
  static constexpr int kRepeat = Config::kRepeat;
  static constexpr bool kForward = Config::kForward;
  static constexpr bool kAtOnce = Config::kJoinsAtOnce;

 public:
  using SharedRuns = typename Runs::Shared;
  // The totals of the runs before the one that the lane is in, forward relative to `maximum`.
  struct Totals {
    float sums[Config::kSums * Config::kElements][Config::kThreads];
    float factors[Config::kThreads];
    float maximum[kForward ? Config::kThreads : 1];
  };

  __device__ PairSums(SharedRuns& runs, Totals& totals) : runs_(runs), totals_(totals) {}

  __device__ void clear() {
    constexpr float zeros[kVector] = {};
#pragma unroll
    for (int s = 0; s < Config::kSums; ++s) {
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) runs_.store(s, r, zeros);
    }
    has_total_ = false;
  }

  // Whether the run ends with a chunk, of a row with `left` edges from that chunk on. Runs have kPairRun edges of each
  // group, counted from the row's end: its first run is the shorter. The last one ends with the row.
  __device__ static bool is_run(uint32_t left, int log2_groups) {
    const uint32_t run_mask = (kPairRun << log2_groups) - 1;
    return left > kWarpSize && ((left - 1) & run_mask) < kWarpSize;
  }

  // sums = rescale * sums + factors * rows. Where edges join runs at once, `rescale` is left to the caller.
  template <int kEdges>
  __device__ void add(const PairRows<Config, kEdges>& rows, const PairFactors<kEdges>& factors, float rescale,
                      const Score& score) {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
      float batch[kVector];
      if constexpr (Config::kSumsValues) {
        if constexpr (kAtOnce) runs_.load(0, r, batch);
#pragma unroll
        for (int u = 0; u < kEdges; ++u) {
          float row[kVector];
          rows.widen_value(u, r, row);
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            batch[i] = u == 0 && !kAtOnce ? factors.value[u] * row[i] : fmaf(factors.value[u], row[i], batch[i]);
          }
        }
        end_batch(0, r, rescale, batch);
      }
      if constexpr (Config::kSumsKeys) {
        if constexpr (kAtOnce) runs_.load(Config::kKeySum, r, batch);
#pragma unroll
        for (int u = 0; u < kEdges; ++u) score.add_gradient(u == 0 && !kAtOnce, factors.key[u], rows, u, r, batch);
        end_batch(Config::kKeySum, r, 1.f, batch);
      }
    }
  }

  // sums = factor * sums, of a run
  __device__ void rescale(float factor) {
    for_each_sum([&](int, float& sum) { sum *= factor; });
  }

  // The run joins the total, and what rounding that addition lost starts the next run. At the row's end the run takes
  // the total instead. Sums of edges do the same.
  __device__ void end_run(bool is_last, float maximum, float& factor_sum, Edges& edges) {
    float rescale = 1.f;
    if constexpr (kForward) {
      if (has_total_) rescale = exp_of_difference<T>(totals_.maximum[threadIdx.x] - maximum);
      totals_.maximum[threadIdx.x] = maximum;
    }
    join_total(is_last, rescale, totals_.factors[threadIdx.x], factor_sum);
    for_each_sum([&](int i, float& sum) { join_total(is_last, rescale, totals_.sums[i][threadIdx.x], sum); });
    edges.end_run(has_total_, is_last, rescale);
    has_total_ = true;
  }
  __device__ void end_row(float maximum, float& factor_sum, Edges& edges) {
    if (has_total_) end_run(true, maximum, factor_sum, edges);
  }

  // After end_row: the lane's sum.
  __device__ void load(int s, int r, float (&sum)[kVector]) const { runs_.load(s, r, sum); }

 private:
  // Calls use(i, sum) for every sum of the run, which it may change; i: its place among the totals.
  template <class Use>
  __device__ void for_each_sum(const Use& use) {
#pragma unroll
    for (int s = 0; s < Config::kSums; ++s) {
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
        float sum[kVector];
        runs_.load(s, r, sum);
#pragma unroll
        for (int i = 0; i < kVector; ++i) use((s * kRepeat + r) * kVector + i, sum[i]);
        runs_.store(s, r, sum);
      }
    }
  }
  // batch: the sum of its edges or, where they join the run at once, of the run.
  __device__ void end_batch(int s, int r, float rescale, const float (&batch)[kVector]) {
    if constexpr (kAtOnce) return runs_.store(s, r, batch);
    float sum[kVector];
    runs_.load(s, r, sum);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] = kForward ? fmaf(sum[i], rescale, batch[i]) : sum[i] + batch[i];
    runs_.store(s, r, sum);
  }
  __device__ void join_total(bool is_last, float rescale, float& total, float& run) const {
    cuda::end_run(has_total_, rescale, total, run);
    if (is_last) run = total;
  }

  Runs runs_;
  Totals& totals_;
  bool has_total_;
};

}  // namespace halfgnn::cuda
