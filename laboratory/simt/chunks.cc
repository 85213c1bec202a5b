// Operators that build adjacencies as csrc/cuda does, with limits of the test's own: fewer edges than 2^31 go through
// chunks. Compiled with the bindings.

#include "../../csrc/cuda/graph.h"

#include <torch/library.h>

#include "../../csrc/ops/checks.h"

TORCH_LIBRARY(halfgnn_simt, m) {
  m.def("coo_to_csr(Tensor row, Tensor col, int num_rows, int chunk) -> (Tensor, Tensor, Tensor)",
        [](const at::Tensor& row, const at::Tensor& col, int64_t num_rows, int64_t chunk) {
          return halfgnn::cuda::coo_to_csr(row, col, num_rows, {chunk, chunk});
        });
  m.def(
      "transpose(Tensor indptr, Tensor indices, Tensor? edge_ids, int num_cols, int chunk) -> (Tensor, Tensor, Tensor)",
      [](const at::Tensor& indptr, const at::Tensor& indices, const std::optional<at::Tensor>& edge_ids,
         int64_t num_cols, int64_t chunk) {
        const halfgnn::Topology topology = halfgnn::topology_of(indptr, indices, edge_ids, indices.numel());
        return halfgnn::cuda::transpose(topology, indices, num_cols, {chunk, chunk});
      });
}
