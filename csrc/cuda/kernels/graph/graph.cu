// The kernels behind graph.h. A thread a value: what they move is small beside the sorts around them.

// Assertions are part of what check_offsets does, however this is compiled.
#undef NDEBUG
#include "graph.h"

#include <cassert>

#include "../core/rows.cuh"

namespace halfgnn::cuda {
namespace {

constexpr int kThreads = 256;

__device__ int64_t global_thread() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

__device__ void store_id(void* data, bool is_int64, int64_t i, int64_t value) {
  if (is_int64) {
    __stcs(static_cast<long long*>(data) + i, static_cast<long long>(value));
  } else {
    __stcs(static_cast<int*>(data) + i, static_cast<int>(value));
  }
}

// ---- expand_rows

// Positions that a warp walks, 32 at a time.
constexpr int kSteps = 8;

struct ExpandArgs {
  Rows rows;
  void* row_of;
};

__global__ void __launch_bounds__(kThreads) expand_rows_kernel(const ExpandArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t first = global_thread() / kWarpSize * (kSteps * kWarpSize);
  if (first >= args.rows.num_edges) return;  // whole warps
  RowsOfEdges rows(args.rows, first, lane);
  for (int64_t begin = first; begin < first + kSteps * kWarpSize && begin < args.rows.num_edges; begin += kWarpSize) {
    const int64_t row = rows.next(begin);
    if (begin + lane < args.rows.num_edges) store_id(args.row_of, args.rows.indptr.is_int64, begin + lane, row);
  }
}

// ---- compress_rows

struct CompressArgs {
  Ids sorted;
  int64_t num_edges;
  int64_t num_rows;
  void* indptr;
};

// How many entries are below `row`: a search that lanes of a warp, whose rows are neighbours, make over the same
// entries.
__global__ void __launch_bounds__(kThreads) compress_rows_kernel(const CompressArgs args) {
  const int64_t row = global_thread();
  if (row > args.num_rows) return;
  int64_t low = row == args.num_rows ? args.num_edges : 0, high = row == 0 ? 0 : args.num_edges;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (args.sorted.offset(middle) < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  store_id(args.indptr, args.sorted.is_int64, row, high);
}

// ---- permute_edges

struct PermuteArgs {
  const int64_t* order;
  int64_t num_edges;
  Ids cols, ids;
  bool has_ids;
  void* out_indices;
  void* out_ids;
};

// Entries that were neighbours before a stable sort by rows mostly are after it, so the reads use the caches.
__global__ void __launch_bounds__(kThreads) permute_edges_kernel(const PermuteArgs args) {
  const int64_t i = global_thread();
  if (i >= args.num_edges) return;
  const int64_t from = __ldcs(reinterpret_cast<const long long*>(args.order) + i);
  store_id(args.out_indices, args.cols.is_int64, i, args.cols.offset(from));
  store_id(args.out_ids, args.cols.is_int64, i, args.has_ids ? args.ids.offset(from) : from);
}

// ---- place_chunk

struct PlaceArgs {
  Rows rows;  // of the chunk
  Ids order, next, cols, ids;
  int64_t first_edge;
  bool has_ids;
  void* out_indices;
  void* out_ids;
};

__global__ void __launch_bounds__(kThreads) place_chunk_kernel(const PlaceArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t first = global_thread() / kWarpSize * (kSteps * kWarpSize);
  if (first >= args.rows.num_edges) return;  // whole warps
  const bool is_int64 = args.cols.is_int64;
  RowsOfEdges rows(args.rows, first, lane);
  for (int64_t begin = first; begin < first + kSteps * kWarpSize && begin < args.rows.num_edges; begin += kWarpSize) {
    const int64_t row = rows.next(begin), p = begin + lane;
    if (p >= args.rows.num_edges) continue;
    const int64_t to = args.next.offset(row) + p - args.rows.indptr.offset(row);
    const int64_t from = args.first_edge + args.order.offset(p);
    store_id(args.out_indices, is_int64, to, args.cols.offset(from));
    store_id(args.out_ids, is_int64, to, args.has_ids ? args.ids.offset(from) : from);
  }
}

// ---- check_offsets

struct CheckArgs {
  Ids indptr;
  int64_t num_rows;
  int64_t num_edges;
};

__global__ void __launch_bounds__(kThreads) check_offsets_kernel(const CheckArgs args) {
  const int64_t i = global_thread();
  if (i > args.num_rows) return;
  const int64_t offset = args.indptr.offset(i);
  const bool rises = i == 0 ? offset == 0 : args.indptr.offset(i - 1) <= offset;
  const bool ends = i < args.num_rows || offset == args.num_edges;
  assert(rises && ends && "seglen must be non-negative and add up to the number of rows of value");
}

}  // namespace

cudaError_t expand_rows(const Topology& topology, void* row_of, const Launch& launch) {
  const ExpandArgs args{rows_of(topology), row_of};
  if (topology.num_rows == 0) return cudaSuccess;
  return cuda::launch(expand_rows_kernel, ceil_div(topology.num_edges, int64_t{kThreads} * kSteps), kThreads,
                      launch.stream, args);
}

cudaError_t compress_rows(const void* sorted_rows, int64_t num_edges, int64_t num_rows, bool is_int64, void* indptr,
                          const Launch& launch) {
  const CompressArgs args{{sorted_rows, is_int64}, num_edges, num_rows, indptr};
  return cuda::launch(compress_rows_kernel, ceil_div(num_rows + 1, kThreads), kThreads, launch.stream, args);
}

cudaError_t permute_edges(const int64_t* order, int64_t num_edges, const void* cols, const void* ids, bool is_int64,
                          void* out_indices, void* out_ids, const Launch& launch) {
  const PermuteArgs args{order, num_edges, {cols, is_int64}, {ids, is_int64}, ids != nullptr, out_indices, out_ids};
  return cuda::launch(permute_edges_kernel, ceil_div(num_edges, kThreads), kThreads, launch.stream, args);
}

cudaError_t place_chunk(const SortedChunk& chunk, const void* cols, const void* ids, bool is_int64, void* out_indices,
                        void* out_ids, const Launch& launch) {
  if (chunk.num_rows == 0) return cudaSuccess;
  Topology topology;
  topology.indptr = chunk.indptr;
  topology.num_rows = chunk.num_rows;
  topology.num_edges = chunk.num_edges;
  topology.is_int64 = is_int64;
  const PlaceArgs args{rows_of(topology), {chunk.order, false}, {chunk.next, is_int64},
                       {cols, is_int64},  {ids, is_int64},      chunk.first_edge,
                       ids != nullptr,    out_indices,          out_ids};
  return cuda::launch(place_chunk_kernel, ceil_div(chunk.num_edges, int64_t{kThreads} * kSteps), kThreads,
                      launch.stream, args);
}

cudaError_t check_offsets(const Topology& topology, const Launch& launch) {
  const CheckArgs args{{topology.indptr, topology.is_int64}, topology.num_rows, topology.num_edges};
  return cuda::launch(check_offsets_kernel, ceil_div(topology.num_rows + 1, kThreads), kThreads, launch.stream, args);
}

}  // namespace halfgnn::cuda
