// The back ends of this build, by device. The build defines the dispatch keys that they serve: HALFGNN_CPU_KEY and,
// with CUDA, HALFGNN_CUDA_KEY.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <tuple>

#include "../core/backend.h"

namespace halfgnn {

// Adjacencies are made with PyTorch's own sort and memory, so these functions take tensors. Their arguments have been
// checked, except for the limits of a back end. Rows and columns may have any stride.
struct GraphBackend {
  using Csr = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // indptr, indices, edge_ids
  Csr (*coo_to_csr)(const at::Tensor& row, const at::Tensor& col, int64_t num_rows);
  // indices: those of the topology, contiguous
  Csr (*transpose)(const Topology& topology, const at::Tensor& indices, int64_t num_cols);
};

// The back end of a device. Raises NotImplementedError if this build has none for it.
const Backend& backend_of(const c10::Device& device);
const GraphBackend& graph_backend_of(const c10::Device& device);

}  // namespace halfgnn
