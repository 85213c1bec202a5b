// Rows of an adjacency divided among threads in pieces of equal work.
#pragma once

#include <algorithm>
#include <atomic>

#include "../core/types.h"
#include "../torch/threads.h"

namespace halfgnn {

// First row at or after which `target` units of work (rows + edges) have passed.
template <class I>
int64_t row_at_work(const I* indptr, int64_t num_rows, int64_t target) {
  int64_t low = 0, high = num_rows;
  while (low < high) {
    const int64_t mid = (low + high) / 2;
    if (mid + static_cast<int64_t>(indptr[mid]) < target) {
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  return low;
}

// Calls kernel(piece, row_begin, row_end) for every one of `pieces` pieces of about equal work, empty ones too.
template <class Kernel>
void for_pieces(const Topology& topology, int64_t pieces, const Kernel& kernel) {
  const int64_t work = topology.num_rows + topology.num_edges;
  auto boundary = [&](int64_t piece) {
    if (piece == pieces) return topology.num_rows;
    const int64_t target =
        static_cast<int64_t>(static_cast<double>(work) / static_cast<double>(pieces) * static_cast<double>(piece));
    return topology.is_int64 ? row_at_work(static_cast<const int64_t*>(topology.indptr), topology.num_rows, target)
                             : row_at_work(static_cast<const int32_t*>(topology.indptr), topology.num_rows, target);
  };
  // parallel_for gives each thread one range. Threads take pieces as they come, which evens out rows of unlike
  // cost.
  std::atomic<int64_t> next{0};
  parallel_for(0, std::min<int64_t>(num_threads(), pieces), 1, [&](int64_t, int64_t) {
    for (int64_t piece = next++; piece < pieces; piece = next++) kernel(piece, boundary(piece), boundary(piece + 1));
  });
}

// How many pieces for_pieces() should make for a sum over pieces: a number that does not depend on the threads.
inline int64_t fixed_pieces(const Topology& topology) {
  constexpr int64_t kWork = 1 << 14, kMost = 256;
  return std::min<int64_t>((topology.num_rows + topology.num_edges) / kWork + 1, kMost);
}

// Calls kernel(row_begin, row_end) over all rows, in parallel if the work (elements touched) is worth a thread. Several
// pieces per thread even out rows of unlike cost. No result depends on the division: a row is never split.
template <class Kernel>
void for_rows(const Topology& topology, int64_t elements_per_edge, const Kernel& kernel) {
  constexpr int64_t kSerialElements = 1 << 15;
  const int64_t work = topology.num_rows + topology.num_edges;
  const int64_t threads = num_threads();
  if (topology.num_rows == 0) return;
  if (threads == 1 || work * std::max<int64_t>(elements_per_edge, 1) <= kSerialElements)
    return kernel(0, topology.num_rows);
  for_pieces(topology, std::min<int64_t>(8 * threads, work), [&](int64_t, int64_t begin, int64_t end) {
    if (begin < end) kernel(begin, end);
  });
}

// Calls kernel(begin, end) over n items of `elements` each, in parallel if that is worth a thread.
template <class Kernel>
void for_items(int64_t n, int64_t elements, const Kernel& kernel) {
  constexpr int64_t kGrainElements = 1 << 15;
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(elements, 1));
  parallel_for(0, n, grain, [&](int64_t begin, int64_t end) { kernel(begin, end); });
}

}  // namespace halfgnn
