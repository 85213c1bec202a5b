// The CPU back end: kernels of the processor's instruction set, rows divided among threads.

#include "../ops/backend.h"

#include <ATen/Dispatch.h>

#include "../ops/operators.h"
#include "attention.h"
#include "gather_rows.h"
#include "kernels/kernels.h"
#include "threads.h"

namespace halfgnn {
namespace {

void spmm_sum(const SpmmSumArgs& args) {
  for_rows(args.topology, args.heads * args.dim,
           [&](int64_t begin, int64_t end) { kernels().spmm_sum(args, begin, end); });
}

void spmm(const SpmmArgs& args) {
  for_rows(args.topology, args.out_len + 16, [&](int64_t begin, int64_t end) { kernels().spmm(args, begin, end); });
}

template <void (*KernelTable::*kKernel)(const SddmmArgs&, int64_t, int64_t)>
void sddmm(const SddmmArgs& args) {
  for_rows(args.topology, args.broadcast.outer * args.broadcast.inner + 16,
           [&](int64_t begin, int64_t end) { (kernels().*kKernel)(args, begin, end); });
}

void mul_backward(const MulBackwardArgs& args) {
  for_rows(args.topology, 2 * args.heads * args.dim,
           [&](int64_t begin, int64_t end) { kernels().mul_backward(args, begin, end); });
}

void backward(const BackwardArgs& args) {
  for_rows(args.topology, 2 * args.message_len + 16,
           [&](int64_t begin, int64_t end) { kernels().backward(args, begin, end); });
}

template <void (*KernelTable::*kKernel)(const EdgeSoftmaxArgs&, int64_t, int64_t)>
void edge_softmax(const EdgeSoftmaxArgs& args) {
  for_rows(args.topology, 8 * args.columns,
           [&](int64_t begin, int64_t end) { (kernels().*kKernel)(args, begin, end); });
}

// The kernels trust offsets: lengths that are negative or do not add up must not reach them.
template <class I>
void check_rising(const I* offsets, int64_t segments, int64_t num_rows) {
  TORCH_CHECK_VALUE(offsets[0] == 0 && offsets[segments] == num_rows, "seglen adds up to ",
                    offsets[segments] - offsets[0], "; expected ", num_rows, ", the number of rows of value");
  for (int64_t i = 0; i < segments; ++i) TORCH_CHECK_VALUE(offsets[i] <= offsets[i + 1], "seglen[", i, "] is negative");
}
void check_offsets(const Topology& topology) {
  if (topology.is_int64) {
    check_rising(static_cast<const int64_t*>(topology.indptr), topology.num_rows, topology.num_edges);
  } else {
    check_rising(static_cast<const int32_t*>(topology.indptr), topology.num_rows, topology.num_edges);
  }
}

constexpr Backend kCpu{
    /*has_double=*/true,
    [](DType type, int64_t dim) { return kernels().has_vector_kernel(type, dim); },
    [](DType type, int64_t heads, int64_t dim) { return kernels().has_sum_kernel(type, heads, dim); },
    spmm_sum,
    spmm,
    sddmm<&KernelTable::sddmm_dot>,
    sddmm<&KernelTable::sddmm_elementwise>,
    sddmm<&KernelTable::sddmm>,
    mul_backward,
    backward,
    edge_softmax<&KernelTable::edge_softmax>,
    edge_softmax<&KernelTable::edge_softmax_backward>,
    cpu::gat_attention,
    cpu::gat_attention_backward,
    cpu::gatv2_attention,
    cpu::gatv2_attention_backward,
    cpu::dot_attention,
    cpu::dot_attention_backward,
    cpu::gather_rows,
    check_offsets,
};
const bool kAdded = add_backend(c10::kCPU, kCpu);

}  // namespace

TORCH_LIBRARY_IMPL(halfgnn, CPU, m) { register_operators(m); }

}  // namespace halfgnn
