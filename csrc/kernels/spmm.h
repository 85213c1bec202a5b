// Sparse-dense products over a compressed adjacency, on CUDA: the launchers.
//
//   out[v, f] = sum of lhs[indices[e], f] over the in-edges e = indptr[v] ... indptr[v + 1] - 1
//
// Shapes         indptr (num_dst + 1), ascending; indices (num_edges), each a row of lhs;
//                lhs (num_src, num_features); out (num_dst, num_features). All contiguous device
//                memory. The adjacency is trusted: an index outside lhs reads outside lhs.
// Types          T fp16, bf16 or fp32; Out is T, or fp32 for an unrounded result; Index int32 or
//                int64. Offsets are 64-bit whatever Index is.
// Alignment      lhs and out: that of their element. Where both bases and the row length allow it
//                a lane moves 16 bytes at once, else 8, 4 or 2.
// Empty rows     A row without in-edges is written as 0: out need not be initialised. num_dst = 0
//                and num_features = 0 launch nothing. lhs and indices may be null without edges.
// Duplicates     An edge that occurs twice counts twice. Edge ids play no part.
// Accumulation   fp32, rounded to Out once, at the store. inf and nan propagate; a sum beyond the
//                range of Out becomes inf.
// Determinism    No atomics: equal inputs at equal alignment give equal bits. (The order of the
//                additions follows from the access width and num_features.)
// Stream         Runs on `stream`, never synchronises, allocates nothing, and chooses its grid from
//                the sizes alone, so it can be captured in a CUDA graph.
// Errors         The status of the launch. cudaErrorInvalidValue for a negative size, for a row of
//                out of 2 GiB or more, and for a grid larger than CUDA allows.
// Method         A warp a row, groups of lanes on several edges at once. Indices are loaded
//                coalesced and shared within the warp as in GE-SpMM (Huang et al., SC 2020), rows
//                are read with vector accesses as in Sputnik (Gale et al., SC 2020).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace halfgnn::cuda {

template <typename T, typename Out, typename Index>
cudaError_t spmm_copy_lhs_sum(const Index* indptr, const Index* indices, const T* lhs, Out* out, int64_t num_dst,
                              int64_t num_features, cudaStream_t stream);

}  // namespace halfgnn::cuda
