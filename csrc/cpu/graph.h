// Building adjacencies on the CPU. Ids that are out of range raise a ValueError.
#pragma once

#include <cstdint>
#include <tuple>

#include "../core/types.h"
#include "../torch/tensor.h"

namespace halfgnn::cpu {

using Csr = std::tuple<Tensor, Tensor, Tensor>;  // indptr, indices, edge_ids

Csr coo_to_csr(const Tensor& row, const Tensor& col, int64_t num_rows);
Csr transpose(const Topology& topology, const Tensor& indices, int64_t num_cols);

}  // namespace halfgnn::cpu
