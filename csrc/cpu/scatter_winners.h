// The gradients of maxima and minima, from nodes to the sources of their winners: when, and by which threads.
#pragma once

#include <algorithm>

#include "kernels/choose.h"
#include "threads.h"
#include "workspace.h"

namespace halfgnn::cpu {

// Edges per node and per source from which elements are added where their winners come from, instead of compared for
// every edge. Measured on Zen 4 with one thread and fp16, of 16, 64 and 256 columns: the two take the same time at 14
// to 20 edges per node, and at 200 the scatter takes 0.04 to 0.3 of it (docs/cpu_kernels.md). Between them this leaves
// room for threads that read the winners of other threads' sources, too. It does not depend on the threads, because
// the two round differently.
constexpr int64_t kScatterDegree = 48;
// Bytes of a thread's sums: more sources keep the other kernel. Their sums would not stay in any cache.
constexpr int64_t kMostScatterBytes = int64_t{64} << 20;
constexpr int64_t kWinnerRowBytes = kWinnerColumns * static_cast<int64_t>(sizeof(double));
// Slices whose winners are looked up at the same time, at least, so that ids of edges are read less often.
constexpr int64_t kScatterSlices = 8;

inline bool scatters_winners(const CopyReduceBackwardArgs& args) {
  const int64_t sources = args.topology.num_rows;
  return (args.max || args.min) && args.in_edges.indices &&
         args.topology.num_edges >= kScatterDegree * std::max(args.num_nodes, sources) &&
         sources * kWinnerRowBytes <= kMostScatterBytes;
}

// Writes the sums of the winners' gradients to rows of `type`. Threads take slices of columns, and parts of the sources
// if there are fewer slices than threads.
inline void scatter_winners(const CopyReduceBackwardArgs& args, void* out, DType type) {
  const CopyReduceKernels& kernel = kernels().copy_reduce;
  const int64_t threads = num_threads(), slices = slices_of(args.dim), sources = args.topology.num_rows;
  const int64_t together = std::min(slices, std::max(threads, kScatterSlices)), parts = (threads + slices - 1) / slices;
  const int64_t rows = (sources + parts - 1) / parts, extremes = (args.max != nullptr) + (args.min != nullptr);
  const Workspace found(DType::kFloat, extremes * together * args.num_nodes * kWinnerColumns);
  for (int64_t slice = 0; slice < slices; slice += together) {
    const int64_t first = slice * kWinnerColumns;
    const WinnerColumns columns{
        args, first, std::min(args.dim - first, together * kWinnerColumns), static_cast<uint32_t*>(found.get()),
        out,  type};
    for_items(args.num_nodes, 16 * extremes * columns.count,
              [&](int64_t begin, int64_t end) { kernel.winners(columns, begin, end); });
    const int64_t pieces = columns.slices() * parts;
    std::atomic<int64_t> next{0};
    parallel_for(0, std::min(threads, pieces), 1, [&](int64_t, int64_t) {
      const Workspace sums(DType::kDouble, (rows + 1) * kWinnerColumns);
      for (int64_t piece = next++; piece < pieces; piece = next++) {
        const int64_t begin = std::min(sources, piece % parts * rows), end = std::min(sources, begin + rows);
        kernel.scatter(columns, piece / parts, begin, end, static_cast<double*>(sums.get()));
      }
    });
  }
}

}  // namespace halfgnn::cpu
