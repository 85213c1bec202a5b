// coo_to_csr and transpose on CUDA: PyTorch's stable radix sort, and kernels around it. No host synchronisation.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sort.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAException.h>
#include <torch/library.h>

#include "../common/checks.h"
#include "../kernels/graph.h"
#include "device.h"

namespace halfgnn::cuda {
namespace {

using Csr = std::tuple<Tensor, Tensor, Tensor>;

// The edges (row, col), numbered by `ids` or by their order, as an adjacency whose rows are `row`.
Csr compress(const Tensor& row, const Tensor& col, const void* ids, int64_t num_rows) {
  const bool is_int64 = row.scalar_type() == at::kLong;
  const int64_t num_edges = row.numel();
  const Launch launch{current_stream()};
  const auto [sorted, order] = at::sort(row, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  Tensor indptr = at::empty({num_rows + 1}, row.options()), indices = at::empty_like(row),
         edge_ids = at::empty_like(row);
  C10_CUDA_CHECK(
      compress_rows(sorted.const_data_ptr(), num_edges, num_rows, is_int64, indptr.mutable_data_ptr(), launch));
  C10_CUDA_CHECK(permute_edges(order.const_data_ptr<int64_t>(), num_edges, col.const_data_ptr(), ids, is_int64,
                               indices.mutable_data_ptr(), edge_ids.mutable_data_ptr(), launch));
  return {indptr, indices, edge_ids};
}

Csr coo_to_csr(const Tensor& row, const Tensor& col, int64_t num_rows) {
  const c10::DeviceGuard guard(row.device());
  check_coo(row, col);
  check_count(num_rows, "num_rows");
  return compress(row.contiguous(), col.contiguous(), nullptr, num_rows);
}

Csr transpose(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, int64_t num_cols) {
  const c10::DeviceGuard guard(indptr.device());
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel());
  check_count(num_cols, "num_cols");
  Tensor row = at::empty_like(indices);
  C10_CUDA_CHECK(expand_rows(topology, row.mutable_data_ptr(), Launch{current_stream()}));
  return compress(indices, row, topology.edge_ids, num_cols);
}

}  // namespace

TORCH_LIBRARY_IMPL(halfgnn, HALFGNN_CUDA_KEY, m) {
  m.impl("coo_to_csr", &coo_to_csr);
  m.impl("transpose", &transpose);
}

}  // namespace halfgnn::cuda
