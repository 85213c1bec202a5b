// Building adjacencies on CUDA, of arguments that have been checked. Tests of chunks bring smaller limits.
#pragma once

#include <cstdint>
#include <limits>
#include <tuple>

#include "../core/types.h"
#include "../torch/tensor.h"

namespace halfgnn::cuda {

// Edges that are sorted at once: all, if there are at most `whole`, else chunks of `chunk`.
struct SortLimits {
  int64_t whole;
  int64_t chunk;
};
// PyTorch sorts no more elements than an int counts. A sort needs about 32 bytes per element beside its operand, so
// chunks are shorter than they could be.
constexpr SortLimits kSortLimits{std::numeric_limits<int32_t>::max(), int64_t{1} << 29};

using Csr = std::tuple<Tensor, Tensor, Tensor>;  // indptr, indices, edge_ids

Csr coo_to_csr(const Tensor& row, const Tensor& col, int64_t num_rows, const SortLimits& limits);
Csr transpose(const Topology& topology, const Tensor& indices, int64_t num_cols, const SortLimits& limits);

// With kSortLimits.
Csr coo_to_csr(const Tensor& row, const Tensor& col, int64_t num_rows);
Csr transpose(const Topology& topology, const Tensor& indices, int64_t num_cols);

}  // namespace halfgnn::cuda
