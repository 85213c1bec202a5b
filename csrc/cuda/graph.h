// Building adjacencies on CUDA. The operators coo_to_csr and transpose sort as kSortLimits says; tests of chunks bring
// smaller limits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>

namespace halfgnn::cuda {

// Edges that are sorted at once: all, if there are at most `whole`, else chunks of `chunk`.
struct SortLimits {
  int64_t whole;
  int64_t chunk;
};
// PyTorch sorts no more elements than an int counts. A sort needs about 32 bytes an element beside its operand, so
// chunks are shorter than they could be.
constexpr SortLimits kSortLimits{std::numeric_limits<int32_t>::max(), int64_t{1} << 29};

using Csr = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // indptr, indices, edge_ids

Csr coo_to_csr(const at::Tensor& row, const at::Tensor& col, int64_t num_rows, const SortLimits& limits);
Csr transpose(const at::Tensor& indptr, const at::Tensor& indices, const std::optional<at::Tensor>& edge_ids,
              int64_t num_cols, const SortLimits& limits);

}  // namespace halfgnn::cuda
