// The launcher of code_sum.h.

#include "code_sum.h"

#include "../core/combine.h"
#include "code_sum.cuh"

namespace halfgnn::cuda {
namespace {

// Sums of integers have 32 bits, so longer rows than these are cut whatever the caller says of rows.
constexpr int64_t kMostUncutEdges = int64_t{1} << 24;

CodeSumArgs with_cut_rows(CodeSumArgs args) {
  args.topology.short_rows = args.topology.short_rows && args.topology.num_edges <= kMostUncutEdges;
  return args;
}

bool is_integer(Code code) { return code == Code::kUInt8 || code == Code::kInt8; }

cudaError_t launch_sum(const CodeSumArgs& args, const CodeSumKernelArgs& kernel_args, const GatherShape& shape,
                       const Launch& launch) {
  if (is_integer(args.code) && args.weight == nullptr && args.scales.per != ScalePer::kRow) {
    return sum_integers(args, kernel_args, shape, launch);
  }
  switch (args.code) {
    case Code::kFloat8E4M3: return sum_values<DecodeE4M3>(args, kernel_args, shape, launch);
    case Code::kFloat8E5M2: return sum_values<DecodeE5M2>(args, kernel_args, shape, launch);
    default: return sum_values<DecodeInteger>(args, kernel_args, shape, launch);
  }
}

}  // namespace

size_t code_sum_workspace(const CodeSumArgs& given) {
  const CodeSumArgs args = with_cut_rows(given);
  return partial_bytes(rows_of(args.topology), args.heads * args.dim);
}

cudaError_t code_sum(const CodeSumArgs& given, const Launch& launch) {
  const CodeSumArgs args = with_cut_rows(given);
  const int64_t len = args.heads * args.dim;
  if (!fits_gather(len) || args.code == Code::kNone || args.out_type == DType::kDouble ||
      args.weight_type == DType::kDouble) {
    return cudaErrorInvalidValue;
  }
  if (args.topology.num_rows == 0 || len == 0) return cudaSuccess;

  CodeSumKernelArgs kernel_args{};
  kernel_args.edge_ids = edge_ids_of(args.topology);
  kernel_args.weight = args.weight;
  kernel_args.weight_type = args.weight_type;
  kernel_args.heads = static_cast<int32_t>(args.weight != nullptr ? args.heads : 1);
  kernel_args.scales = args.scales;
  kernel_args.flip = args.code == Code::kInt8 ? 0x80808080u : 0;
  kernel_args.bias = args.code == Code::kInt8 ? 128.f : 0.f;
  kernel_args.divide_by_degree = args.divide_by_degree;
  kernel_args.out = args.out;
  kernel_args.out_type = args.out_type;
  kernel_args.partial = static_cast<float*>(launch.workspace);
  const int64_t id_bytes = args.topology.is_int64 ? 8 : 4;
  const bool is_weighted = args.weight != nullptr;
  const int64_t weight_bytes =
      is_weighted ? ids_bytes(args.topology) - id_bytes + args.heads * size_of(args.weight_type) : 0;
  const GatherShape shape{args.codes, args.codes_rows,         len,
                          false,      id_bytes + weight_bytes, is_weighted ? kWeightedSumWork : kSumWork};
  const cudaError_t status = launch_sum(args, kernel_args, shape, launch);
  if (status != cudaSuccess) return status;
  return combine(
      {rows_of(args.topology), kernel_args.partial, len, 1.f, args.divide_by_degree, args.out, args.out_type}, launch);
}

}  // namespace halfgnn::cuda
