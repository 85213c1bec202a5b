// Building compressed adjacencies on CUDA around stable sorts, which the caller brings, and checking one. See launch.h
// for what holds for all launchers. Arrays of ids are int32 or int64 by `is_int64`, all alike.
#pragma once

#include "../core/launch.h"

namespace halfgnn::cuda {

// row_of[p] = the row of position p, for every edge.
cudaError_t expand_rows(const Topology& topology, void* row_of, const Launch& launch);

// indptr (num_rows + 1) of ascending `sorted_rows` (num_edges): the number of entries below each row. Entries outside
// [0, num_rows) are counted as if they were at the nearer end.
cudaError_t compress_rows(const void* sorted_rows, int64_t num_edges, int64_t num_rows, bool is_int64, void* indptr,
                          const Launch& launch);

// out_indices[p] = cols[order[p]] and out_ids[p] = ids ? ids[order[p]] : order[p], for every p; order is int64.
cudaError_t permute_edges(const int64_t* order, int64_t num_edges, const void* cols, const void* ids, bool is_int64,
                          void* out_indices, void* out_ids, const Launch& launch);

// Where edges are sorted in chunks: puts one chunk among the rows of all. Entry p of the sorted chunk, which is edge
// `first_edge` + order[p], goes to position next[r] + p - indptr[r] of its row r: next[r] is where the chunk's entries
// of row r begin among those of all chunks. `indptr` (num_rows + 1) is the chunk's own, from compress_rows; `order`
// is int32 whatever ids are. Fills out_indices and out_ids there as permute_edges does.
struct SortedChunk {
  const void* indptr;
  const int32_t* order;
  const void* next;
  int64_t num_rows;
  int64_t first_edge;
  int64_t num_edges;
};
cudaError_t place_chunk(const SortedChunk& chunk, const void* cols, const void* ids, bool is_int64, void* out_indices,
                        void* out_ids, const Launch& launch);

// Fails with a device-side assertion unless indptr rises from 0 to num_edges.
cudaError_t check_offsets(const Topology& topology, const Launch& launch);

}  // namespace halfgnn::cuda
