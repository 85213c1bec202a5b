// scalar_spmm and scalar_sddmm on CUDA: checks and allocation.

#include "scalar_baseline.h"

#include <torch/library.h>

#include "../../csrc/ops/checks.h"
#include "../../csrc/torch/cuda.h"
#include "../../csrc/torch/device.h"

namespace halfgnn::cuda {
namespace {

using Pair = std::tuple<Tensor, Tensor>;
constexpr bool kHasDouble = false;

void check_equal_types(const Feature& lhs, const Feature& rhs) {
  CHECK_TYPE(lhs.operand.type == rhs.operand.type, "lhs_data has dtype ", dtype_name(lhs.tensor.scalar_type()),
             " and rhs_data ", dtype_name(rhs.tensor.scalar_type()), "; expected equal dtypes");
}

// Weights: one per element of lhs, or one per head, for all of its last dimension.
void check_weights(const Feature& lhs, const Feature& rhs) {
  const Shape features = trailing(lhs.tensor.sizes()), weights = trailing(rhs.tensor.sizes());
  Shape one_a_head = features;
  if (!one_a_head.empty()) one_a_head.back() = 1;
  CHECK_VALUE(weights == features || weights == one_a_head, "rhs_data has trailing shape ", IntArrayRef(weights),
              "; expected ", IntArrayRef(features), " or ", IntArrayRef(one_a_head));
}

Pair scalar_spmm_op(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, string_view op_name,
                    string_view reduce_name, const OptionalTensor& lhs_data, const OptionalTensor& rhs_data) {
  const DeviceGuard guard(indptr.device());
  ScalarSpmmArgs args;
  args.op = parse_op(op_name, false);
  args.reduce = parse_reduce(reduce_name);
  CHECK_VALUE(args.op == Op::kCopyLhs || args.op == Op::kCopyRhs || args.op == Op::kMul, "op is '", op_name,
              "'; expected copy_lhs, copy_rhs or mul");
  const bool max = args.reduce == Reduce::kMax;
  CHECK_VALUE(args.reduce == Reduce::kSum || (max && args.op != Op::kMul), "reduce is '", reduce_name,
              "'; expected sum, or max of a copy");
  args.topology = topology_of(indptr, indices, edge_ids, indices.numel());
  const auto operand = [&](bool is_read, const OptionalTensor& data, const char* name, Target target) {
    return feature_of(is_read ? data : std::nullopt, name, target, indptr.device(), kHasDouble);
  };
  const Feature lhs = operand(reads_lhs(args.op), lhs_data, "lhs_data", Target::kCol);
  const Feature rhs = operand(reads_rhs(args.op), rhs_data, "rhs_data", Target::kEdge);
  check_operands_present(args.op, lhs, rhs, op_name);
  check_edge_rows(rhs, "rhs_data", args.topology.num_edges);
  if (args.op == Op::kMul) {
    check_equal_types(lhs, rhs);
    check_weights(lhs, rhs);
  }
  const Feature& feat = lhs.defined() ? lhs : rhs;
  args.lhs = lhs.operand;
  args.rhs = rhs.operand;
  args.out_len = feat.operand.len;
  Tensor out = zeros(with_rows(args.topology.num_rows, trailing(feat.tensor.sizes())), feat.tensor.options());
  Tensor arg = max ? zeros(out.sizes(), indptr.options()) : empty({0}, indptr.options());
  args.out = out.mutable_data_ptr();
  args.arg = max ? arg.mutable_data_ptr() : nullptr;
  CHECK_CUDA(scalar_spmm(args, Launch{current_stream()}));
  return {out, arg};
}

Tensor scalar_sddmm_op(const Tensor& src, const Tensor& dst, string_view op_name, const Tensor& lhs_data,
                       const Tensor& rhs_data, string_view lhs_target, string_view rhs_target) {
  const DeviceGuard guard(src.device());
  check_coo(src, dst);
  CHECK_VALUE(src.is_contiguous() && dst.is_contiguous(), "src or dst is not contiguous");
  ScalarSddmmArgs args;
  args.op = parse_op(op_name, true);
  CHECK_VALUE(reads_lhs(args.op) && reads_rhs(args.op), "op is '", op_name,
              "'; expected one of add, sub, mul, div, dot");
  const Feature lhs = feature_of(lhs_data, "lhs_data", parse_target(lhs_target, false), src.device(), kHasDouble);
  const Feature rhs = feature_of(rhs_data, "rhs_data", parse_target(rhs_target, false), src.device(), kHasDouble);
  check_equal_types(lhs, rhs);
  check_edge_rows(lhs, "lhs_data", src.numel());
  check_edge_rows(rhs, "rhs_data", src.numel());
  Shape shape = trailing(lhs.tensor.sizes());
  CHECK_VALUE(shape == trailing(rhs.tensor.sizes()), "lhs_data has trailing shape ", IntArrayRef(shape),
              " and rhs_data ", IntArrayRef(trailing(rhs.tensor.sizes())), "; expected equal shapes");
  if (args.op == Op::kDot && !shape.empty()) {
    args.reduce_len = shape.back();
    shape.back() = 1;
  }
  args.out_len = 1;
  for (const int64_t size : shape) args.out_len *= size;
  args.src = src.const_data_ptr();
  args.dst = dst.const_data_ptr();
  args.num_edges = src.numel();
  args.is_int64 = src.scalar_type() == ScalarType::Long;
  args.lhs = lhs.operand;
  args.rhs = rhs.operand;
  Tensor out = empty(with_rows(args.num_edges, shape), lhs.tensor.options());
  args.out = out.mutable_data_ptr();
  CHECK_CUDA(scalar_sddmm(args, Launch{current_stream()}));
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(halfgnn_yardsticks, HALFGNN_CUDA_KEY, m) {
  m.impl("scalar_spmm", &scalar_spmm_op);
  m.impl("scalar_sddmm", &scalar_sddmm_op);
}

}  // namespace halfgnn::cuda
