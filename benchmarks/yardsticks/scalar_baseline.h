// A competitor for the benchmarks, no operator: the algorithm of DGL's kernels for half precision, written anew from a
// description of it, so that a GPU without DGL has that comparison. Sums: one thread per row and feature walks the
// row's edges in loads of one element. Dots: one warp per edge and head, or one thread where a head has fewer than 32
// elements. Messages and dots are rounded to the operands' type at every step; only sums over edges are fp32. See
// launch.h for what holds for all launchers, but for accuracy.
#pragma once

#include "../../csrc/cuda/kernels/core/launch.h"

namespace halfgnn::cuda {

// out[row] += reduce over the row's edges of op(lhs[column], rhs[edge]). Operands and out are of one type.
struct ScalarSpmmArgs {
  Topology topology;
  Op op = Op::kCopyLhs;          // or kCopyRhs, or kMul
  Reduce reduce = Reduce::kSum;  // or, of copies, kMax
  Operand lhs, rhs;              // rhs of kMul: one element for every out_len / rhs.len of lhs
  int64_t out_len = 0;
  void* out = nullptr;  // zeros
  void* arg = nullptr;  // zeros of the topology's index type, for max: the column or the edge that won
};
cudaError_t scalar_spmm(const ScalarSpmmArgs& args, const Launch& launch);

// out[edge] = op(lhs, rhs) of a list of edges. Targets: kCol is the edge's source, kRow its destination. Operands and
// out are of one type; operands have out_len elements per row, for kDot reduce_len times as many.
struct ScalarSddmmArgs {
  const void* src = nullptr;  // int32 or int64
  const void* dst = nullptr;
  int64_t num_edges = 0;
  bool is_int64 = false;
  Op op = Op::kDot;  // or kAdd, kSub, kMul, kDiv
  Operand lhs, rhs;
  int64_t out_len = 0;
  int64_t reduce_len = 1;
  void* out = nullptr;
};
cudaError_t scalar_sddmm(const ScalarSddmmArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
