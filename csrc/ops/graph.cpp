// coo_to_csr and transpose: checks.

#include "../torch/device.h"
#include "checks.h"
#include "register.h"

namespace halfgnn {
namespace {

GraphBackend::Csr coo_to_csr(const Tensor& row, const Tensor& col, int64_t num_rows) {
  const DeviceGuard guard(row.device());
  check_coo(row, col);
  check_count(num_rows, "num_rows");
  return graph_backend_of(row.device()).coo_to_csr(row, col, num_rows);
}

GraphBackend::Csr transpose(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids,
                            int64_t num_cols) {
  const DeviceGuard guard(indptr.device());
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel());
  check_count(num_cols, "num_cols");
  return graph_backend_of(indptr.device()).transpose(topology, indices, num_cols);
}

}  // namespace

void register_graph(Library& m) {
  m.impl<&coo_to_csr>("coo_to_csr");
  m.impl<&transpose>("transpose");
}

}  // namespace halfgnn
