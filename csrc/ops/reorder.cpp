// reorder and locality: checks. They look at a graph as a whole and are for the CPU only.

#ifdef HALFGNN_CPU_KEY

#include "../cpu/reorder.h"

#include "checks.h"
#include "register.h"

namespace halfgnn {
namespace {

constexpr int64_t kMostNodes = (int64_t{1} << 31) - 1;

Tensor reorder(const Tensor& indptr, const Tensor& indices, const Tensor& out_indptr, const Tensor& out_indices) {
  const int64_t num_edges = indices.numel();
  const Topology in_edges = topology_of(indptr, indices, {}, num_edges);
  const Topology out_edges = topology_of(out_indptr, out_indices, {}, num_edges);
  CHECK_TYPE(in_edges.is_int64 == out_edges.is_int64, "out_indptr has dtype ", dtype_name(out_indptr.scalar_type()),
             "; expected that of indptr, ", dtype_name(indptr.scalar_type()));
  CHECK_VALUE(in_edges.num_rows == out_edges.num_rows, "out_indptr has shape ", out_indptr.sizes(),
              "; expected that of indptr, ", indptr.sizes(), ": sources and destinations are the same nodes");
  CHECK_VALUE(in_edges.num_rows <= kMostNodes, "indptr has shape ", indptr.sizes(), "; expected at most ", kMostNodes,
              " nodes");
  Tensor new_ids = empty({in_edges.num_rows}, indptr.options());
  cpu::reorder(in_edges, out_edges, new_ids.mutable_data_ptr());
  return new_ids;
}

Tensor locality(const Tensor& indices, int64_t num_cols, int64_t window) {
  const auto type = indices.scalar_type();
  CHECK_TYPE(type == ScalarType::Int || type == ScalarType::Long, "indices has dtype ", dtype_name(type),
             "; expected torch.int32 or torch.int64");
  CHECK_VALUE(indices.dim() == 1 && indices.is_contiguous(), "indices has shape ", indices.sizes(), " and strides ",
              indices.strides(), "; expected one dimension, contiguous");
  CHECK_VALUE(num_cols >= 0 && num_cols <= kMostNodes, "num_cols is ", num_cols, "; expected a number in [0, ",
              kMostNodes, "]");
  CHECK_VALUE(window >= 1 && window <= kMostNodes, "window is ", window, "; expected a number in [1, ", kMostNodes,
              "]");
  const cpu::Reuse reuse =
      cpu::reuse(indices.const_data_ptr(), type == ScalarType::Long, indices.numel(), num_cols, window);
  Tensor result = empty({2}, indices.options().dtype(ScalarType::Long));
  result.mutable_data_ptr<int64_t>()[0] = reuse.found;
  result.mutable_data_ptr<int64_t>()[1] = reuse.gathers;
  return result;
}

}  // namespace

void register_reorder(Library& m) {
  m.impl<&reorder>("reorder");
  m.impl<&locality>("locality");
}

}  // namespace halfgnn

#endif
