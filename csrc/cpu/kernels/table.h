// The kernel table of one instruction set.
#pragma once

#include "kernels.h"

namespace halfgnn::HALFGNN_ISA {

static bool has_vector_kernel(DType type, int64_t dim) { return type != DType::kDouble && dim >= 8; }
static bool has_sum_kernel(DType type, int64_t heads, int64_t dim) {
  return type != DType::kDouble && (dim >= 8 || (heads * dim > 0 && heads * dim < 8));
}
// Places of edges are held in 32 bits.
static bool has_reduce_kernel(DType type, int64_t dim, int64_t num_edges) {
  return has_vector_kernel(type, dim) && num_edges <= INT32_MAX;
}

extern const SpmmKernels kSpmm;
extern const EdgeSumKernels kEdgeSum;
extern const GatedSumKernels kGatedSum;
extern const CodeSumKernels kCodeSum;
extern const CopyReduceKernels kCopyReduce;
extern const SddmmKernels kSddmm;
extern const BackwardKernels kBackward;
extern const EdgeSoftmaxKernels kEdgeSoftmax;
extern const GatKernels kGat;
extern const PairKernels kPair;
extern const HeadLogitsKernels kHeadLogits;
extern const GatherKernels kGather;
extern const CooSumKernels kCooSum;
extern const CooSoftmaxKernels kCooSoftmax;

extern const KernelTable kKernels;
const KernelTable kKernels = {
    HALFGNN_ISA_NAME, has_vector_kernel, has_sum_kernel, has_reduce_kernel, kSpmm,        kEdgeSum, kGatedSum,
    kCodeSum,         kCopyReduce,       kSddmm,         kBackward,         kEdgeSoftmax, kGat,     kPair,
    kHeadLogits,      kGather,           kCooSum,        kCooSoftmax,
};

}  // namespace halfgnn::HALFGNN_ISA
