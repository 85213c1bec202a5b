// Whether the gradient of maxima and minima is gathered by sources, or added from nodes to the sources of their
// winners.
//
// Gathered: every edge says in one byte which of its columns won, and what won is read. That is a byte and two ids per
// edge, from anywhere in memory, and a read of a part of a row for nearly every winner.
//
// Added: every node reads its winners and gradients once. Each of them is added to a sum of its source by an atomic
// addition of integers, whose order does not matter. All of these take a slice of the columns before the next, so that
// the sums of a slice stay in the L2 cache.
#pragma once

#include <algorithm>

#include "slices.h"

namespace halfgnn::cuda {

struct WinnersProblem {
  int64_t num_sources, num_nodes, num_edges;
  int64_t dim;
  int64_t extremes;  // 1, or 2: maxima and minima
  int64_t id_bytes;
  bool searches;           // edge data is not in the order of in-edges: a winner is looked for among those of its node
  int64_t gathered_bytes;  // that an edge reads of its node, if the gradient is gathered
  int64_t streamed_bytes;  // that it reads beside these
};

// Sums count in units of 2^-24, of which every fp16 number is a multiple, less than 2^40 of them. So many nodes add to
// a sum at most, each once for maxima and once for minima, that it stays below 2^63.
constexpr int64_t kMostExactNodes = int64_t{1} << 22;
constexpr int64_t kExactSumBytes = 8;
// The same for each sum: whether an infinity or a nan was added.
constexpr int64_t kSumsPerFlagWord = 8, kFlagBits = 32 / kSumsPerFlagWord;
// Columns of a slice, at least. Arithmetic: a sector of results, and two of winners.
constexpr int64_t kMinWinnerColumns = kSectorBytes / 2;
// Columns of a slice, at most: lanes of a warp of four columns each share a node.
constexpr int64_t kMaxWinnerColumns = 4 * kWarpSize;
// Atomic additions in a second, in the L2 cache. Assumed: nobody has measured it for these kernels.
constexpr double kAtomicsPerSecond = 100e9;
// What a launch takes that follows another one on its stream. A guess.
constexpr double kLaunchSeconds = 3e-6;
// The share of the time of a gather that additions must take less than. A guess: the rate of atomics is assumed.
constexpr double kWinnersGain = 0.5;

class WinnersPlanner {
 public:
  WinnersPlanner(const Device& device, const WinnersProblem& problem) : device_(device), problem_(problem) {}

  // The widest slice whose sums fit in the cache; 0: none does.
  int64_t slice_columns() const {
    const RowCache cache(device_, {kCacheOfRows.share, 0});
    int64_t columns = kMaxWinnerColumns;
    while (columns > kMinWinnerColumns && columns / 2 >= problem_.dim) columns /= 2;
    while (columns >= kMinWinnerColumns && !cache.holds(workspace_bytes(columns))) columns /= 2;
    return columns >= kMinWinnerColumns ? columns : 0;
  }
  int64_t workspace_bytes(int64_t columns) const {
    return problem_.num_sources * columns * kExactSumBytes + flag_bytes(columns);
  }
  int64_t flag_bytes(int64_t columns) const {
    return problem_.num_sources * columns / kSumsPerFlagWord * static_cast<int64_t>(sizeof(uint32_t));
  }

  // Seconds, if the parts do not overlap.
  double adding(int64_t columns) const {
    const auto nodes = static_cast<double>(problem_.num_nodes * problem_.extremes);
    const double dim = static_cast<double>(problem_.dim), elements = nodes * dim;
    const double results = static_cast<double>(problem_.num_sources) * dim;
    const auto slices = static_cast<double>(ceil_div(problem_.dim, columns));
    // Of a node's ids, a slice reads a sector for each winner, and all of them where it searches.
    const double ids = static_cast<double>(problem_.num_edges * problem_.id_bytes);
    const double read =
        std::min(nodes * static_cast<double>(columns * kSectorBytes), ids) + (problem_.searches ? ids : 0);
    const double memory = elements * (kWinnerBytes + kHalfBytes) + results * kHalfBytes + slices * read;
    const double cache = 2 * results * kExactSumBytes;  // cleared and read
    const double launches = slices * static_cast<double>(2 + problem_.extremes);
    return memory / device_.rates.memory + cache / device_.rates.cache + elements / kAtomicsPerSecond +
           launches * kLaunchSeconds;
  }
  // The same. Instructions are left out: those of an edge that won nothing are not known.
  double gathering() const {
    const double streamed = static_cast<double>(problem_.num_edges) * static_cast<double>(problem_.streamed_bytes);
    const double results = static_cast<double>(problem_.num_sources * problem_.dim) * kHalfBytes;
    const Slices whole{1, problem_.gathered_bytes, false, 0, streamed, 0};
    return times_of(device_, {problem_.num_nodes, problem_.gathered_bytes, problem_.num_edges}, whole, results).total();
  }

  // The columns of a slice if elements are added; 0: they are gathered.
  int64_t plan() const {
    if (problem_.num_nodes * problem_.extremes > kMostExactNodes || problem_.num_edges == 0) return 0;
    const int64_t columns = slice_columns();
    return columns > 0 && adding(columns) < kWinnersGain * gathering() ? columns : 0;
  }

 private:
  static constexpr double kWinnerBytes = 4, kHalfBytes = 2;

  const Device& device_;
  const WinnersProblem& problem_;
};

}  // namespace halfgnn::cuda
