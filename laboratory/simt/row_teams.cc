// An operator that says what teams of a warp get of rows. Compiled with the bindings.

#include "row_teams.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <torch/library.h>

#include "../../csrc/ops/checks.h"

namespace halfgnn::cuda {
namespace {

// How often groups got each edge, for which line, and how often each row and the piece of each slot ended.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> row_teams(const at::Tensor& indptr, int64_t num_edges,
                                                                     at::IntArrayRef layout, int64_t log2_rows,
                                                                     int64_t passes) {
  const Topology topology = topology_of(indptr, std::nullopt, std::nullopt, num_edges);
  const Rows rows = rows_of(topology);
  const auto counts = [](int64_t size) { return at::zeros({size}, at::kInt); };
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> out{counts(num_edges), counts(num_edges),
                                                                 counts(topology.num_rows), counts(rows.num_slots)};
  const auto data = [](const at::Tensor& tensor) { return tensor.mutable_data_ptr<int>(); };
  const TeamRecord record{data(std::get<0>(out)), reinterpret_cast<uint32_t*>(data(std::get<1>(out))),
                          data(std::get<2>(out)), data(std::get<3>(out)), std::max(topology.num_rows, rows.num_slots)};
  const TeamLayout lanes{static_cast<int32_t>(layout[0]), static_cast<int32_t>(layout[1]),
                         static_cast<int32_t>(layout[2])};
  C10_CUDA_CHECK(record_teams(topology, lanes, static_cast<int>(log2_rows), static_cast<int>(passes), record));
  return out;
}

TORCH_LIBRARY_FRAGMENT(halfgnn_simt, m) {
  m.def(
      "row_teams(Tensor indptr, int num_edges, int[] layout, int log2_rows, int passes)"
      " -> (Tensor, Tensor, Tensor, Tensor)",
      row_teams);
}

}  // namespace
}  // namespace halfgnn::cuda
