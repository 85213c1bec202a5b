// Building adjacencies on the CPU. Ids that are out of range raise a ValueError.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "../core/types.h"

namespace halfgnn::cpu {

using Csr = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // indptr, indices, edge_ids

Csr coo_to_csr(const at::Tensor& row, const at::Tensor& col, int64_t num_rows);
Csr transpose(const Topology& topology, const at::Tensor& indices, int64_t num_cols);

}  // namespace halfgnn::cpu
