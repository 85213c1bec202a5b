// The back ends of this build, by device. The build defines the dispatch keys that they serve: HALFGNN_CPU_KEY and,
// with CUDA, HALFGNN_CUDA_KEY.
#pragma once

#include <tuple>

#include "../core/backend.h"
#include "../torch/tensor.h"

namespace halfgnn {

// Adjacencies are made with PyTorch's own sort and memory, so these functions take tensors. Their arguments have been
// checked, except for the limits of a back end. Rows and columns may have any stride.
struct GraphBackend {
  using Csr = std::tuple<Tensor, Tensor, Tensor>;  // indptr, indices, edge_ids
  Csr (*coo_to_csr)(const Tensor& row, const Tensor& col, int64_t num_rows);
  // indices: those of the topology, contiguous
  Csr (*transpose)(const Topology& topology, const Tensor& indices, int64_t num_cols);
};

// The back end of a device. Raises NotImplementedError if this build has none for it.
const Backend& backend_of(const Device& device);
const GraphBackend& graph_backend_of(const Device& device);

}  // namespace halfgnn
