// gspmm on CUDA: checks, allocation, device and stream, choice of kernel.

#include "../kernels/spmm.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "dispatch.h"

namespace halfgnn::cuda {
namespace {

template <typename T, typename Out, typename Index>
cudaError_t copy_lhs_sum(const Topology& topology, const Operand& lhs, void* out, cudaStream_t stream) {
  return spmm_copy_lhs_sum(static_cast<const Index*>(topology.indptr), static_cast<const Index*>(topology.indices),
                           static_cast<const T*>(lhs.data), static_cast<Out*>(out), topology.num_rows, lhs.len, stream);
}

// `out` has the type of lhs, or is float.
cudaError_t dispatch_copy_lhs_sum(const Topology& topology, const Operand& lhs, const Tensor& out,
                                  cudaStream_t stream) {
  const bool same_type = dtype_of(out.scalar_type(), "out") == lhs.type;
  return with_element_type(lhs.type, "lhs_data", [&](auto element) {
    return with_index_type(topology, [&](auto index) {
      using T = typename decltype(element)::type;
      using Index = typename decltype(index)::type;
      const auto run = same_type ? copy_lhs_sum<T, T, Index> : copy_lhs_sum<T, float, Index>;
      return run(topology, lhs, out.mutable_data_ptr(), stream);
    });
  });
}

std::tuple<Tensor, Tensor> gspmm(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids,
                                 std::string_view op_name, std::string_view reduce_name, const OptionalTensor& lhs_data,
                                 const OptionalTensor& /*rhs_data*/, std::optional<at::ScalarType> out_dtype) {
  const Op op = parse_op(op_name, /*sddmm=*/false);
  const Reduce reduce = parse_reduce(reduce_name);
  const at::Device device = indptr.device();
  TORCH_CHECK_NOT_IMPLEMENTED(op == Op::kCopyLhs && reduce == Reduce::kSum, "gspmm with op '", op_name,
                              "' and reduce '", reduce_name, "' has no CUDA kernel (graph on ", device,
                              "); op 'copy_lhs' with reduce 'sum' has");
  TORCH_CHECK_VALUE(device.is_cuda(), "indptr is on ", device, "; expected a CUDA device");
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel());
  const Feature lhs = feature_of(lhs_data, "lhs_data", Target::kCol, device);
  TORCH_CHECK_VALUE(lhs.defined(), "lhs_data is None; '", op_name, "' needs it");
  const auto type = result_type(lhs.tensor.scalar_type(), out_dtype);

  const c10::cuda::CUDAGuard guard(device);
  Tensor out = at::empty(with_rows(topology.num_rows, trailing(lhs.tensor.sizes())), lhs.tensor.options().dtype(type));
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device.index());
  C10_CUDA_CHECK(dispatch_copy_lhs_sum(topology, lhs.operand, out, stream));
  return {out, at::empty({0}, indptr.options())};
}

}  // namespace

TORCH_LIBRARY_IMPL(halfgnn, CUDA, m) { m.impl("gspmm", &gspmm); }

}  // namespace halfgnn::cuda
