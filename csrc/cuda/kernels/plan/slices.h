// How long it takes to gather the rows of a matrix whole, or in slices. The one model behind all planners.
//
// Every edge reads a row. If all warps work on one slice of the columns before the next, the part of the matrix that is
// read again and again is smaller, and fits in the L2 cache or nearly so. But every slice reads ids and weights again,
// and begins every row again.
#pragma once

#include <algorithm>
#include <cmath>

#include "../core/warp.h"
#include "model.h"
#include "work.h"

namespace halfgnn::cuda {

// The lanes of a warp that cover `vectors` accesses, `repeat` each, or as much of them as a warp can.
inline int log2_lanes_for(int64_t vectors, int repeat) {
  return std::min(kLog2Warp, log2_ceil(ceil_div(vectors, repeat)));
}

// The gathered matrix.
struct Gathered {
  int64_t rows;
  int64_t row_bytes;
  int64_t num_edges;       // each reads a row
  bool read_once = false;  // every row by one edge: nothing is read again
  double skew = kCacheOfRows.skew;
};

// The part of the L2 cache that is left to gathered rows.
class RowCache {
 public:
  RowCache(const Device& device, const CacheUse& use)
      : bytes_(static_cast<int64_t>(use.share * static_cast<double>(device.l2_bytes))), skew_(use.skew) {}

  bool holds(int64_t bytes) const { return bytes <= bytes_; }
  // The share of reads that miss, among reads of `bytes` that are read again and again, if the cache keeps what was
  // read last. It is that of Che, Tung and Wang (2002), with rows read independently of one another: the closed form is
  // within 0.025 of their equations for a skew of 0 to 0.6 (laboratory/plan/test_model.py).
  double miss_rate(double bytes) const {
    const double held = bytes > 0 ? static_cast<double>(bytes_) / bytes : 1;
    return held >= 1 ? 0 : 1 - std::pow(held, 1 - 1.2 * skew_ * skew_);
  }

 private:
  int64_t bytes_;
  double skew_;
};

// Bytes that an edge reads from memory of edge data in an order that is not that of the walk: a whole access, unless
// the data stays in the L2 cache. bytes: of an edge.
inline int64_t scattered_bytes(const Device& device, int64_t num_edges, int64_t bytes) {
  if (RowCache(device, kCacheOfRows).holds(num_edges * bytes)) return bytes;
  return ceil_div(bytes, kMemoryBytes) * kMemoryBytes;
}

// A way to divide the rows of a matrix.
struct Slices {
  int64_t count;
  int64_t bytes;           // that an edge reads of a row for one slice; with those that idle lanes read again
  bool one_by_one;         // all warps work on a slice before the next; otherwise on all slices at the same time
  double cached_per_edge;  // bytes that an edge reads from the L2 cache for every slice, beside its row
  double streamed;         // bytes that all edges together read from memory to sweep the matrix once, beside rows
  double instructions;     // of all warps, for one slice
  double node_bytes = 0;   // that a node has of what cached_per_edge is read from: logits, records
};

// What the cache has to hold of each node so that nothing of a slice is missed.
inline double node_bytes_of(const Gathered& gathered, const Slices& slices) {
  const bool is_part = slices.one_by_one && slices.bytes < gathered.row_bytes;
  return static_cast<double>(is_part ? slices.bytes : gathered.row_bytes) + slices.node_bytes;
}

// Bytes of gathered rows that are read from memory.
inline double missed_bytes(const RowCache& cache, const Gathered& gathered, const Slices& slices) {
  const double row_bytes = static_cast<double>(gathered.row_bytes), rows = static_cast<double>(gathered.rows);
  const double read = static_cast<double>(gathered.num_edges) * row_bytes;
  if (gathered.read_once) return read;
  const double missed = read * cache.miss_rate(rows * node_bytes_of(gathered, slices));
  return std::max(missed, std::min(read, rows * row_bytes));  // the first read of a row misses in any case
}

// The same of logits and records of nodes. An access of memory brings those of several nodes, if they are small: it
// misses if no edge of any of them has been read for long, as if each were missed by itself.
inline double missed_node_bytes(const RowCache& cache, const Gathered& gathered, const Slices& slices) {
  if (slices.node_bytes == 0) return 0;
  const double rows = static_cast<double>(gathered.rows), access = static_cast<double>(kMemoryBytes);
  const double reads = static_cast<double>(gathered.num_edges * slices.count);
  const double nodes = std::max(1., access / slices.node_bytes);
  const double miss = std::pow(cache.miss_rate(rows * node_bytes_of(gathered, slices)), nodes);
  return std::max(reads * miss * std::max(access, slices.cached_per_edge), rows * slices.node_bytes);
}

// How long a kernel keeps each part of the GPU busy, in seconds.
struct Times {
  double cache, memory, issue;

  // If the parts overlap perfectly. Predictions in docs/tuning.md are such bounds.
  double bound() const { return std::max({cache, memory, issue}); }
  // What is to be expected: parts overlap in part.
  double expected() const {
    const double parts = std::pow(cache, kOverlap) + std::pow(memory, kOverlap) + std::pow(kWait * issue, kOverlap);
    return std::pow(parts, 1 / kOverlap);
  }
  // If nothing overlaps. Planners compare this, so that they save in each part.
  double total() const { return cache + memory + kIssueDelay * issue; }
};

// `streamed_once`: bytes that are read from and written to memory once, whatever the slices.
inline Times times_of(const Device& device, const Gathered& gathered, const Slices& slices, double streamed_once) {
  const RowCache cache(device, {kCacheOfRows.share, gathered.skew});
  const double count = static_cast<double>(slices.count), sweeps = slices.one_by_one ? count : 1;
  const double cached =
      static_cast<double>(gathered.num_edges) * count * (static_cast<double>(slices.bytes) + slices.cached_per_edge);
  const double missed = missed_bytes(cache, gathered, slices) + missed_node_bytes(cache, gathered, slices);
  const double moved = missed + sweeps * slices.streamed + streamed_once;
  return {cached / device.rates.cache, moved / device.rates.memory, count * slices.instructions / device.rates.issue};
}

// Keeps the fastest of several choices. The first wins unless another is faster by more than the model's error.
template <class Choice>
class Fastest {
 public:
  Fastest(const Choice& first, double time) : choice_(first), least_(time * kSlicingGain) {}
  void consider(const Choice& choice, double time) {
    if (time >= least_) return;
    choice_ = choice;
    least_ = time;
  }
  const Choice& choice() const { return choice_; }

 private:
  Choice choice_;
  double least_;
};

}  // namespace halfgnn::cuda
