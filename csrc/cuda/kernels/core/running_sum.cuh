// Sums of many terms in fp32. A lane adds up a run of at most kRun terms, and the run joins a total. What rounding that
// addition lost is where the next run starts. So the error of a sum is about that of one run, however long the sum is.
#pragma once

#include <cfloat>

#include "launch.cuh"

namespace halfgnn::cuda {

// Terms of a run.
constexpr int kRun = 64;

// The run joins the total.
inline __device__ void end_run(bool has_total, float& total, float& run) {
  const float before = has_total ? total : 0.f, sum = before + run;
  const float lost = run - (sum - before);
  run = fabsf(sum) <= FLT_MAX ? lost : 0.f;  // inf - inf would be nan
  total = sum;
}
// The same with a total that is multiplied by `rescale` first. Multiply-adds are written out: if the compiler
// contracted only one of the two, `lost` would hold the rounding of the product too.
inline __device__ void end_run(bool has_total, float rescale, float& total, float& run) {
  const float before = has_total ? total : 0.f, sum = fmaf(before, rescale, run);
  const float lost = run - fmaf(-before, rescale, sum);
  run = fabsf(sum) <= FLT_MAX ? lost : 0.f;
  total = sum;
}

// kRepeat vectors of sums, of each thread of a block of kThreads. Totals are rarely used, so they lie in shared memory.
template <int kRepeat, int kVector, int kThreads>
struct RunningSum {
  float run[kRepeat][kVector];
  bool has_total;  // the same for the whole warp

  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) run[r][i] = 0.f;
    }
    has_total = false;
  }

  __device__ void end_run() {
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) cuda::end_run(has_total, total(r, i), run[r][i]);
    }
    has_total = true;
  }

  // Leaves the sum of all terms in run.
  __device__ void finish() {
    if (!has_total) return;
#pragma unroll
    for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) run[r][i] += total(r, i);
    }
  }

  // Adds up what lanes hold that differ in the bits of `first`, 2 `first`, ... below `end`, in a fixed order. All of
  // them end up with the sum. The whole warp takes part.
  __device__ void sum_over_lanes(int first, int end) {
    for (int distance = first; distance < end; distance *= 2) {
#pragma unroll
      for (int r = 0; r < kRepeat; ++r) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) run[r][i] += __shfl_xor_sync(kFullMask, run[r][i], distance);
      }
    }
  }

 private:
  // A thread's totals lie beside those of its neighbours.
  __device__ static float& total(int r, int i) {
    __shared__ float totals[kRepeat][kVector][kThreads];
    return totals[r][i][threadIdx.x];
  }
};

}  // namespace halfgnn::cuda
