// The CPU back end: kernels of the processor's instruction set, rows divided among threads.

#include "backend.h"

#include "../core/huge_pages.h"
#include "../torch/errors.h"
#include "attention.h"
#include "gather_rows.h"
#include "kernels/choose.h"
#include "narrow_sum.h"
#include "scatter_winners.h"
#include "threads.h"
#include "workspace.h"

namespace halfgnn::cpu {
namespace {

void spmm_sum(const SpmmSumArgs& args) {
  for_rows(args.topology, args.heads * args.dim,
           [&](int64_t begin, int64_t end) { kernels().spmm.sum(args, begin, end); });
}

void spmm(const SpmmArgs& args) {
  if (const auto sum = as_narrow_sum(args)) return spmm_sum(*sum);
  for_rows(args.topology, args.out_len + 16,
           [&](int64_t begin, int64_t end) { kernels().spmm.general(args, begin, end); });
}

void edge_sum(const EdgeSumArgs& args) {
  for_rows(args.topology, 2 * args.dim,
           [&](int64_t begin, int64_t end) { kernels().edge_sum.forward(args, begin, end); });
}

void edge_sum_backward(const EdgeSumBackwardArgs& args) {
  for_rows(args.topology, 3 * args.dim,
           [&](int64_t begin, int64_t end) { kernels().edge_sum.backward(args, begin, end); });
}

void gated_sum(const GatedSumArgs& args) {
  for_rows(args.topology, 8 * args.dim,
           [&](int64_t begin, int64_t end) { kernels().gated_sum.forward(args, begin, end); });
}

void gated_sum_backward(const GatedSumBackwardArgs& args) {
  for_rows(args.topology, 8 * args.dim,
           [&](int64_t begin, int64_t end) { kernels().gated_sum.backward(args, begin, end); });
}

void code_sum(const CodeSumArgs& args) {
  for_rows(args.topology, args.heads * args.dim,
           [&](int64_t begin, int64_t end) { kernels().code_sum.forward(args, begin, end); });
}

void copy_reduce(const CopyReduceArgs& args) {
  for_rows(args.topology, 2 * args.dim,
           [&](int64_t begin, int64_t end) { kernels().copy_reduce.forward(args, begin, end); });
}

void copy_reduce_backward(CopyReduceBackwardArgs args) {
  const bool scatters = scatters_winners(args);
  if (scatters && !args.has_sums()) return scatter_winners(args, args.grad_feat, args.type);
  const Workspace won(DType::kFloat, scatters ? args.topology.num_rows * args.dim : 0);
  if (scatters) {
    scatter_winners(args, won.get(), DType::kFloat);
    args.won = static_cast<const float*>(won.get());
  }
  const int64_t width = args.has_sums() ? args.dim * (args.has_squares() ? 2 : 1) : 0;
  const Workspace workspace(DType::kFloat, args.num_nodes * width);
  float* records = static_cast<float*>(workspace.get());
  if (width > 0)
    for_items(args.num_nodes, 2 * width,
              [&](int64_t begin, int64_t end) { kernels().copy_reduce.records(args, records, begin, end); });
  for_rows(args.topology, 4 * args.dim,
           [&](int64_t begin, int64_t end) { kernels().copy_reduce.gradient(args, records, begin, end); });
}

template <void (*SddmmKernels::*kKernel)(const SddmmArgs&, int64_t, int64_t)>
void sddmm(const SddmmArgs& args) {
  for_rows(args.topology, args.broadcast.outer * args.broadcast.inner + 16,
           [&](int64_t begin, int64_t end) { (kernels().sddmm.*kKernel)(args, begin, end); });
}

void sddmm_add(const SddmmAddArgs& args) {
  for_rows(args.topology, args.dim + 16, [&](int64_t begin, int64_t end) { kernels().sddmm.add(args, begin, end); });
}

void mul_backward(const MulBackwardArgs& args) {
  for_rows(args.topology, 2 * args.heads * args.dim,
           [&](int64_t begin, int64_t end) { kernels().backward.mul(args, begin, end); });
}

void backward(BackwardArgs args) {
  for (const bool of_lhs : {true, false}) {
    const auto sum = as_narrow_sum(args, of_lhs);
    if (!sum) continue;
    spmm_sum(*sum);
    (of_lhs ? args.grad_lhs : args.grad_rhs).data = nullptr;
  }
  if (!args.grad_lhs.data && !args.grad_rhs.data) return;
  for_rows(args.topology, 2 * args.message_len + 16,
           [&](int64_t begin, int64_t end) { kernels().backward.general(args, begin, end); });
}

template <void (*EdgeSoftmaxKernels::*kKernel)(const EdgeSoftmaxArgs&, int64_t, int64_t)>
void edge_softmax(const EdgeSoftmaxArgs& args) {
  for_rows(args.topology, 8 * args.columns,
           [&](int64_t begin, int64_t end) { (kernels().edge_softmax.*kKernel)(args, begin, end); });
}

void head_logits(const HeadLogitsArgs& args) {
  for_items(args.rows, args.heads * args.dim,
            [&](int64_t begin, int64_t end) { kernels().head_logits.forward(args, begin, end); });
}

// A number that does not depend on the threads.
int64_t head_logits_parts(const HeadLogitsBackwardArgs& args) {
  constexpr int64_t kValues = 1 << 16, kMost = 1024;
  return std::clamp<int64_t>(args.rows * args.heads * args.dim / kValues, 1, std::min(kMost, args.rows));
}

void head_logits_backward(const HeadLogitsBackwardArgs& args) {
  const int64_t part_bytes = args.count * args.heads * args.dim * (args.type == DType::kDouble ? 8 : 4);
  for_items(args.num_parts, args.rows / args.num_parts * args.heads * args.dim, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      char* const sums = args.parts ? static_cast<char*>(args.parts) + part * part_bytes : nullptr;
      kernels().head_logits.backward(args, sums, args.rows * part / args.num_parts,
                                     args.rows * (part + 1) / args.num_parts);
    }
  });
}

// The kernels trust offsets: lengths that are negative or do not add up must not reach them.
template <class I>
void check_rising(const I* offsets, int64_t segments, int64_t num_rows) {
  CHECK_VALUE(offsets[0] == 0 && offsets[segments] == num_rows, "seglen adds up to ", offsets[segments] - offsets[0],
              "; expected ", num_rows, ", the number of rows of value");
  for (int64_t i = 0; i < segments; ++i)
    CHECK_VALUE(offsets[i] <= offsets[i + 1], "the sum of seglen falls from ", offsets[i], " to ", offsets[i + 1],
                " at segment ", i, "; expected lengths that are not negative and whose sum does not overflow");
}
void check_offsets(const Topology& topology) {
  if (topology.is_int64) {
    check_rising(static_cast<const int64_t*>(topology.indptr), topology.num_rows, topology.num_edges);
  } else {
    check_rising(static_cast<const int32_t*>(topology.indptr), topology.num_rows, topology.num_edges);
  }
}

constexpr EdgeTermLimits kNoLimits{};

}  // namespace

const Backend kBackend{
    /*has_double=*/true,
    [](DType type, int64_t dim) { return kernels().has_vector_kernel(type, dim); },
    [](DType lhs, DType rhs, DType, int64_t dim) {
      return kernels().has_vector_kernel(lhs, dim) && kernels().has_vector_kernel(rhs, dim);
    },
    [](DType type, int64_t heads, int64_t dim) { return kernels().has_sum_kernel(type, heads, dim); },
    spmm_sum,
    spmm,
    [](DType type, int64_t dim) { return kernels().has_vector_kernel(type, dim); },
    edge_sum,
    edge_sum_backward,
    gated_sum,
    gated_sum_backward,
    code_sum,
    [](DType type, int64_t dim, int64_t num_edges) { return kernels().has_reduce_kernel(type, dim, num_edges); },
    /*reduces_one_extreme=*/true,
    copy_reduce,
    [](const CopyReduceBackwardArgs& args) { copy_reduce_backward(args); },
    sddmm<&SddmmKernels::dot>,
    sddmm<&SddmmKernels::elementwise>,
    /*mixes_elementwise=*/true,
    sddmm_add,
    sddmm<&SddmmKernels::general>,
    mul_backward,
    [](const MulBackwardArgs&, const Topology&) { return false; },
    [](const BackwardArgs& args) { backward(args); },
    edge_softmax<&EdgeSoftmaxKernels::forward>,
    edge_softmax<&EdgeSoftmaxKernels::backward>,
    gat_attention,
    gat_attention_backward,
    head_logits,
    head_logits_parts,
    head_logits_backward,
    pair_attention,
    pair_attention_backward,
    [](const EdgeTerms&, DType, int64_t) { return true; },
    kNoLimits,
    gather_rows,
    check_offsets,
};

}  // namespace halfgnn::cpu

// For rows of measurements: the name of the table of kernels that this process uses. Empty if HALFGNN_CPU names none,
// which every operator reports.
extern "C" __attribute__((visibility("default"))) const char* halfgnn_cpu_kernels() try {
  return halfgnn::kernels().name;
} catch (const std::exception&) {
  return "";
}

// For halfgnn.common.memory, which gives PyTorch's operators memory for large results.
extern "C" __attribute__((visibility("default"))) void halfgnn_advise_huge_pages(void* data, int64_t bytes) {
  halfgnn::advise_huge_pages(data, bytes);
}
