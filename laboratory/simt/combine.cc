// An operator that adds up given partial rows as csrc/cuda/kernels do: rows of many columns, which blocks sweep,
// without the kernel that would have made the partial rows. Compiled with the bindings.

#include "../../csrc/cuda/kernels/core/combine.h"

#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <torch/library.h>

#include "../../csrc/ops/checks.h"

namespace halfgnn::cuda {
namespace {

// partial (slots, columns): of each piece of the rows of indptr, which say how many edges there are.
at::Tensor combine_partial_rows(const at::Tensor& indptr, const at::Tensor& partial, int64_t num_edges) {
  const Topology topology = topology_of(indptr, std::nullopt, std::nullopt, num_edges);
  const Rows rows = rows_of(topology);
  TORCH_CHECK_VALUE(partial.size(0) == rows.num_slots, "partial has ", partial.size(0), " rows; expected ",
                    rows.num_slots);
  at::Tensor out = at::zeros({topology.num_rows, partial.size(1)}, partial.options()), folded = partial.clone();
  const CombineArgs args{rows,  folded.mutable_data_ptr<float>(), partial.size(1), 1.f,
                         false, out.mutable_data_ptr(),           DType::kFloat};
  C10_CUDA_CHECK(combine(args, Launch{}));
  return out;
}

TORCH_LIBRARY_FRAGMENT(halfgnn_simt, m) {
  m.def("combine(Tensor indptr, Tensor partial, int num_edges) -> Tensor", combine_partial_rows);
}

}  // namespace
}  // namespace halfgnn::cuda
