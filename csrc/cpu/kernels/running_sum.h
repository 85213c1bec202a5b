// A row of sums over any number of edges. Terms are added one after the other for kRun edges, and the sums of such runs
// in fp64: a hub rounds no worse than a run, whatever its degree.
#pragma once

#include "buffer.h"
#include "vec.h"

namespace halfgnn::HALFGNN_ISA {

constexpr int64_t kRun = 64;
// For results that are halves: unless terms cancel, their own rounding is at least 16 times that of so many terms.
constexpr int64_t kHalfRun = 4 * kRun;

template <class Acc>
class RunningSum {
 public:
  explicit RunningSum(int64_t n) : n_(n), run_(n), total_(n) {}
  // Begins a row. Terms are added to the returned values and reported with added().
  HALFGNN_INLINE Acc* start() {
    for (int64_t i = 0; i < n_; ++i) run_[i] = 0;
    return start_runs();
  }
  // The same for whole runs, each written over the last one, which is reported with next_run().
  HALFGNN_INLINE Acc* start_runs() {
    count_ = 0;
    folded_ = false;
    return run_;
  }
  // What start() returned.
  HALFGNN_INLINE Acc* sum() { return run_; }
  // How many terms complete the run.
  HALFGNN_INLINE int64_t left_in_run() const { return kRun - count_; }
  HALFGNN_INLINE void added(int64_t edges) {
    count_ += edges;
    if (count_ >= kRun) fold();
  }
  // Multiplies what was added so far by one factor per head: n / heads consecutive elements each.
  void rescale(int64_t heads, const Acc* factor) {
    const int64_t width = n_ / heads;
    for (int64_t i = 0; i < heads * width; ++i) {
      run_[i] *= factor[i / width];
      if (folded_) total_[i] *= factor[i / width];
    }
  }
  HALFGNN_INLINE Acc* finish() {
    if (folded_)
      for (int64_t i = 0; i < n_; ++i) run_[i] = static_cast<Acc>(total_[i] + run_[i]);
    return run_;
  }
  // Begins a new run.
  HALFGNN_NOINLINE void fold() {
    for (int64_t i = 0; i < n_; ++i) {
      total_[i] = (folded_ ? total_[i] : 0.) + run_[i];
      run_[i] = 0;
    }
    begin_run();
  }
  HALFGNN_NOINLINE void next_run() {
    if (folded_) {
      for (int64_t i = 0; i < n_; ++i) total_[i] += run_[i];
    } else {
      for (int64_t i = 0; i < n_; ++i) total_[i] = run_[i];
    }
    begin_run();
  }

 private:
  HALFGNN_INLINE void begin_run() {
    folded_ = true;
    count_ = 0;
  }

  int64_t n_, count_ = 0;
  bool folded_ = false;
  Buffer<Acc> run_;
  Buffer<double> total_;
};

}  // namespace halfgnn::HALFGNN_ISA
