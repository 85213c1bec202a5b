// gspmm and gspmm_backward: checks, allocation, choice of kernel.

#include "spmm.h"

#include "../torch/device.h"
#include "register.h"
#include "results.h"

namespace halfgnn {
namespace {

// Whether the vector kernel takes it: a plain sum, or one weighted per head.
bool is_vector_sum(const Backend& backend, Op op, const Feature& lhs, const Feature& rhs, const BroadcastPlan& plan) {
  if (op == Op::kCopyLhs) return backend.has_sum_kernel(lhs.operand.type, 1, plan.out_len);
  if (op == Op::kCopyRhs) return backend.has_sum_kernel(rhs.operand.type, 1, plan.out_len);
  return op == Op::kMul && plan.is_rhs_per_head() && backend.has_sum_kernel(lhs.operand.type, plan.outer, plan.inner);
}

void run_vector_sum(const Backend& backend, const Topology& topology, Op op, Reduce reduce, const Feature& lhs,
                    const Feature& rhs, const BroadcastPlan& plan, Tensor& out) {
  const Feature& feat = op == Op::kCopyRhs ? rhs : lhs;
  SpmmSumArgs args;
  args.topology = topology;
  args.feat = feat.operand.data;
  args.feat_rows = feat.operand.rows;
  args.feat_by_edge = op == Op::kCopyRhs;
  args.type = feat.operand.type;
  args.weight_type = feat.operand.type;
  args.dim = plan.out_len;
  if (op == Op::kMul) {
    args.weight = rhs.operand.data;
    args.weight_type = rhs.operand.type;
    args.heads = plan.outer;
    args.dim = plan.inner;
  }
  args.divide_by_degree = reduce == Reduce::kMean;
  args.out = out.mutable_data_ptr();
  args.out_type = dtype_of(out.scalar_type(), "out");
  backend.spmm_sum(args);
}

// Whether the kernels of messages of a node and an edge take it: rows of the same width, no broadcasting.
bool is_edge_sum(const Backend& backend, Op op, DType type, const BroadcastPlan& plan) {
  const bool has_message = op == Op::kMul || op == Op::kAdd || op == Op::kSub || op == Op::kReluAdd;
  return has_message && plan.is_elementwise() && backend.has_edge_sum_kernel(type, plan.out_len);
}

void run_edge_sum(const Backend& backend, const Topology& topology, Op op, Reduce reduce, const Feature& lhs,
                  const Feature& rhs, const BroadcastPlan& plan, Tensor& out) {
  EdgeSumArgs args;
  args.topology = topology;
  args.op = op;
  args.feat = lhs.operand.data;
  args.feat_rows = lhs.operand.rows;
  args.edge = rhs.operand.data;
  args.type = lhs.operand.type;
  args.edge_type = rhs.operand.type;
  args.dim = plan.out_len;
  args.divide_by_degree = reduce == Reduce::kMean;
  args.out = out.mutable_data_ptr();
  args.out_type = dtype_of(out.scalar_type(), "out");
  backend.edge_sum(args);
}

void run_general(const Backend& backend, const Topology& topology, Op op, Reduce reduce, const Feature& lhs,
                 const Feature& rhs, const BroadcastPlan& plan, Tensor& out, Tensor& arg) {
  SpmmArgs args;
  args.topology = topology;
  args.op = op;
  args.reduce = reduce;
  args.lhs = lhs.operand;
  args.rhs = rhs.operand;
  args.broadcast = plan.view();
  args.out_len = plan.out_len;
  args.out = out.mutable_data_ptr();
  args.arg = is_argument_reduce(reduce) ? arg.mutable_data_ptr() : nullptr;
  args.out_type = dtype_of(out.scalar_type(), "out");
  backend.spmm(args);
}

}  // namespace

std::tuple<Tensor, Tensor> gspmm(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids,
                                 string_view op_name, string_view reduce_name, const OptionalTensor& lhs_data,
                                 const OptionalTensor& rhs_data, std::optional<ScalarType> out_dtype, bool short_rows,
                                 bool save, const OptionalTensor& schedule) {
  const DeviceGuard guard(indptr.device());
  const Backend& backend = backend_of(indptr.device());
  const Op op = parse_op(op_name, false);
  const Reduce reduce = parse_reduce(reduce_name);
  Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  put_schedule(topology, schedule, indptr);
  const Feature lhs =
      feature_of(reads_lhs(op) ? OptionalRef(lhs_data) : OptionalRef(), "lhs_data", Target::kCol, indptr.device());
  const Feature rhs =
      feature_of(reads_rhs(op) ? OptionalRef(rhs_data) : OptionalRef(), "rhs_data", Target::kEdge, indptr.device());
  check_operands_present(op, lhs, rhs, op_name);
  check_edge_rows(rhs, "rhs_data", topology.num_edges);
  check_operand_types(op, lhs, rhs);
  const auto shape_of = [](const Feature& f) { return f.defined() ? trailing(f.tensor.sizes()) : Shape{}; };
  const BroadcastPlan plan = plan_of(op, shape_of(lhs), shape_of(rhs));

  const Tensor& feat = lhs.defined() ? lhs.tensor : rhs.tensor;
  const DType feat_type = dtype_of(feat.scalar_type(), "feat");
  const auto type = result_type(feat.scalar_type(), out_dtype);
  Tensor out = new_result(with_rows(topology.num_rows, plan.out_shape), feat.options().dtype(type));
  const auto new_arg = [&](bool full, ScalarType ids) {
    const auto options = indptr.options().dtype(ids);
    return full ? new_result(out.sizes(), options) : empty({0}, options);
  };
  const bool has_winners = is_argument_reduce(reduce);
  const ScalarType own_ids = indptr.scalar_type(), ids = has_winners && is_copy(op) ? winner_type(topology) : own_ids;
  Tensor arg = new_arg(has_winners && save, ids);
  if (!is_argument_reduce(reduce) && is_vector_sum(backend, op, lhs, rhs, plan)) {
    run_vector_sum(backend, topology, op, reduce, lhs, rhs, plan, out);
  } else if (!is_argument_reduce(reduce) && is_edge_sum(backend, op, feat_type, plan)) {
    run_edge_sum(backend, topology, op, reduce, lhs, rhs, plan, out);
  } else if (!is_copy(op) || !copy_extremum(backend, topology, reduce, (lhs.defined() ? lhs : rhs).operand, out, arg)) {
    // General kernels always write the ids, in the type of the topology.
    const bool has_own = has_winners && (!save || ids != own_ids);
    Tensor winners = has_own ? new_arg(true, own_ids) : arg;
    run_general(backend, topology, op, reduce, lhs, rhs, plan, out, winners);
    if (has_own && save) arg = winners.to(ids);
  }
  return {out, arg};
}

namespace {

// What is known of an operand whose gradient may be asked for. The operand itself is given only where the gradient
// reads it.
struct Declared {
  IntArrayRef shape;
  ScalarType dtype;
  bool needs_gradient;

  Tensor empty_gradient(const Tensor& grad_out) const {
    const auto options = grad_out.options().dtype(dtype);
    return needs_gradient ? new_result(shape, options) : empty({0}, options);
  }
};

// What the kernels of the backward share.
struct Backward {
  const Backend& backend;
  Topology topology;
  Op op;
  Feature grad, lhs, rhs;
  const void* mean_indptr;
  const Tensor* arg;
  const BroadcastPlan& plan;
};

// Gradient of lhs alone, a plain or weighted sum of grad over out-edges.
void sum_grad_lhs(const Backward& b, Tensor& grad_lhs) {
  SpmmSumArgs args;
  args.topology = b.topology;
  args.feat = b.grad.operand.data;
  args.feat_rows = b.grad.operand.rows;
  args.type = b.grad.operand.type;
  args.weight_type = b.grad.operand.type;
  args.dim = b.plan.out_len;
  if (b.op == Op::kMul) {
    args.weight = b.rhs.operand.data;
    args.weight_type = b.rhs.operand.type;
    args.heads = b.plan.outer;
    args.dim = b.plan.inner;
  }
  args.mean_indptr = b.mean_indptr;
  args.out = grad_lhs.mutable_data_ptr();
  args.out_type = dtype_of(grad_lhs.scalar_type(), "grad_lhs");
  b.backend.spmm_sum(args);
}

// Gradient of rhs alone over in-edges (CSC): the row's own gradient, dotted with the features or copied.
void edge_grad_rhs(const Backward& b, Tensor& grad_rhs) {
  const bool dot = b.op == Op::kMul;
  Shape heads{b.plan.outer, b.plan.inner};
  const BroadcastPlan plan =
      dot ? BroadcastPlan(heads, heads, Op::kDot) : BroadcastPlan(b.plan.out_shape, b.plan.out_shape, Op::kCopyLhs);
  SddmmArgs args;
  args.topology = b.topology;
  args.op = dot ? Op::kDot : Op::kCopyLhs;
  args.lhs = b.grad.operand;
  args.lhs.target = Target::kRow;
  args.rhs = b.lhs.operand;
  args.rhs.target = Target::kCol;
  args.broadcast = plan.view();
  args.out_len = plan.out_len;
  args.mean_indptr = b.mean_indptr;
  args.out = grad_rhs.mutable_data_ptr();
  args.out_type = dtype_of(grad_rhs.scalar_type(), "grad_rhs");
  const bool elementwise = !args.mean_indptr && args.out_len > 0 && b.grad.operand.type != DType::kDouble &&
                           (args.out_type == b.grad.operand.type || args.out_type == DType::kFloat);
  const auto kernel = dot ? b.backend.sddmm_dot : elementwise ? b.backend.sddmm_elementwise : b.backend.sddmm;
  kernel(args);
}

MulBackwardArgs mul_backward_args(const Backward& b, Tensor& grad_lhs, Tensor& grad_rhs) {
  MulBackwardArgs args;
  args.topology = b.topology;
  args.feat = b.lhs.operand.data;
  args.grad = b.grad.operand.data;
  args.grad_rows = b.grad.operand.rows;
  args.type = b.lhs.operand.type;
  args.grad_type = b.grad.operand.type;
  args.weight = b.rhs.operand.data;
  args.weight_type = b.rhs.operand.type;
  args.mean_indptr = b.mean_indptr;
  args.heads = b.plan.outer;
  args.dim = b.plan.inner;
  args.grad_feat = grad_lhs.mutable_data_ptr();
  args.grad_weight = grad_rhs.mutable_data_ptr();
  return args;
}

// Both gradients of a weighted sum, with one gather or two.
void mul_grad_both(const Backward& b, const Topology& in_edges, Tensor& grad_lhs, Tensor& grad_rhs) {
  const MulBackwardArgs args = mul_backward_args(b, grad_lhs, grad_rhs);
  if (!in_edges.indices || !b.backend.takes_two_gathers(args, in_edges)) return b.backend.mul_backward(args);
  sum_grad_lhs(b, grad_lhs);
  Backward by_in_edges = b;
  by_in_edges.topology = in_edges;
  edge_grad_rhs(by_in_edges, grad_rhs);
}

// Gradients of messages of a node and an edge of the same width, both or one.
void edge_sum_gradients(const Backward& b, const Declared& lhs, const Declared& rhs, Tensor& grad_lhs,
                        Tensor& grad_rhs) {
  EdgeSumBackwardArgs args;
  args.topology = b.topology;
  args.op = b.op;
  args.feat = b.lhs.operand.data;
  args.edge = b.rhs.operand.data;
  args.grad = b.grad.operand.data;
  args.grad_rows = b.grad.operand.rows;
  args.type = dtype_of(lhs.dtype, "lhs");
  args.edge_type = dtype_of(rhs.dtype, "rhs");
  args.grad_type = b.grad.operand.type;
  args.mean_indptr = b.mean_indptr;
  args.dim = b.plan.out_len;
  if (lhs.needs_gradient) args.grad_feat = grad_lhs.mutable_data_ptr();
  if (rhs.needs_gradient) args.grad_edge = grad_rhs.mutable_data_ptr();
  b.backend.edge_sum_backward(args);
}

void general_backward(const Backward& b, bool by_src, Tensor& grad_lhs, Tensor& grad_rhs) {
  BackwardArgs args;
  args.topology = b.topology;
  args.op = b.op;
  args.grad = b.grad.operand;
  args.grad.target = by_src ? Target::kCol : Target::kRow;
  args.lhs = b.lhs.operand;
  args.lhs.len = b.plan.lhs_len;
  args.rhs = b.rhs.operand;
  args.rhs.len = b.plan.rhs_len;
  args.broadcast = b.plan.view();
  args.message_len = b.plan.outer * b.plan.inner;
  args.mean_indptr = b.mean_indptr;
  const Tensor winners = b.arg ? as_type(*b.arg, b.topology.is_int64 ? ScalarType::Long : ScalarType::Int) : Tensor();
  args.arg = data_or_null(winners);
  if (grad_lhs.numel())
    args.grad_lhs = {grad_lhs.mutable_data_ptr(), dtype_of(grad_lhs.scalar_type(), "grad_lhs"), false};
  if (grad_rhs.numel())
    args.grad_rhs = {grad_rhs.mutable_data_ptr(), dtype_of(grad_rhs.scalar_type(), "grad_rhs"), true};
  b.backend.backward(args);
}

// Gradient of lhs alone, of copies of which the largest or smallest were taken.
void extremum_grad_lhs(const Backward& b, Reduce reduce, const Topology& in_edges, Tensor& grad_lhs) {
  const Tensor winners = as_type(*b.arg, ScalarType::Int);
  CopyReduceBackwardArgs args;
  args.topology = b.topology;
  args.in_edges = in_edges;
  args.type = dtype_of(grad_lhs.scalar_type(), "grad_lhs");
  (reduce == Reduce::kMax ? args.max : args.min) = b.grad.operand.data;
  (reduce == Reduce::kMax ? args.arg_max : args.arg_min) = static_cast<const int32_t*>(winners.const_data_ptr());
  args.grad_type = b.grad.operand.type;
  args.num_nodes = b.grad.operand.rows;
  args.dim = b.plan.out_len;
  args.grad_feat = grad_lhs.mutable_data_ptr();
  b.backend.copy_reduce_backward(args);
}

void check_backward(const Backward& b, bool by_src, int64_t num_dst, const Declared& lhs, const Declared& rhs) {
  const Tensor& grad = b.grad.tensor;
  CHECK_VALUE(b.grad.operand.len == b.plan.out_len && grad.size(0) == num_dst &&
                  (by_src || grad.size(0) == b.topology.num_rows),
              "grad has shape ", grad.sizes(), "; expected ", num_dst, " rows of trailing shape ",
              IntArrayRef(b.plan.out_shape));
  const auto is_read = [&](Side side) { return gradient_reads(b.op, side, lhs.needs_gradient, rhs.needs_gradient); };
  if (reads_lhs(b.op))
    check_declared(b.lhs, "lhs", b.lhs.operand.target, is_read(Side::kLhs), lhs.shape, lhs.dtype, b.topology);
  if (reads_rhs(b.op))
    check_declared(b.rhs, "rhs", Target::kEdge, is_read(Side::kRhs), rhs.shape, rhs.dtype, b.topology);
  check_gradient_type(grad, reads_lhs(b.op) ? lhs.dtype : rhs.dtype);
  if (reads_lhs(b.op) && reads_rhs(b.op)) check_types_of_two(lhs.dtype, "lhs", rhs.dtype, "rhs");
}

enum class BackwardPath { kNone, kSumLhs, kMulBoth, kEdgeSum, kEdgeRhs, kExtremumLhs, kGeneral };

BackwardPath path_of(const Backward& b, DType rhs_type, bool by_src, bool need_lhs, bool need_rhs) {
  if (!need_lhs && !need_rhs) return BackwardPath::kNone;
  const DType type = b.grad.operand.type;
  const bool sums = !b.arg;
  const bool weights = sums && b.op == Op::kMul && b.plan.is_rhs_per_head();
  const bool per_head = weights && b.backend.has_vector_kernel(type, b.plan.inner);
  const bool edge_sum = by_src && sums && is_edge_sum(b.backend, b.op, type, b.plan);
  const BackwardPath otherwise = edge_sum ? BackwardPath::kEdgeSum : BackwardPath::kGeneral;
  if (need_lhs && need_rhs) return per_head ? BackwardPath::kMulBoth : otherwise;
  if (need_lhs) {
    const bool extremum = b.arg && b.op == Op::kCopyLhs && type != DType::kDouble &&
                          b.backend.has_reduce_kernel(type, b.plan.out_len, b.topology.num_edges);
    if (extremum) return BackwardPath::kExtremumLhs;
    const bool sums_weighted = weights && b.backend.has_sum_kernel(type, b.plan.outer, b.plan.inner);
    const bool sums_copies = sums && copies_gradient(b.op) && b.plan.lhs_len == b.plan.out_len &&
                             b.backend.has_sum_kernel(type, 1, b.plan.out_len);
    return sums_weighted || sums_copies ? BackwardPath::kSumLhs : otherwise;
  }
  const bool dots = weights && b.backend.has_dot_kernel(b.lhs.operand.type, type, rhs_type, b.plan.inner);
  const bool copies = sums && b.op == Op::kCopyRhs;
  return !by_src && (dots || copies) ? BackwardPath::kEdgeRhs : otherwise;
}

}  // namespace

std::tuple<Tensor, Tensor> gspmm_backward(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids,
                                          const Tensor& in_indptr, bool by_src, string_view op_name,
                                          string_view reduce_name, const Tensor& grad_out,
                                          const OptionalTensor& lhs_data, const OptionalTensor& rhs_data,
                                          const OptionalTensor& arg_data, IntArrayRef lhs_shape, IntArrayRef rhs_shape,
                                          ScalarType lhs_dtype, ScalarType rhs_dtype, bool need_lhs, bool need_rhs,
                                          bool short_rows, const OptionalTensor& in_indices,
                                          const OptionalTensor& in_edge_ids, const OptionalTensor& schedule) {
  const Op op = parse_op(op_name, false);
  const Reduce reduce = parse_reduce(reduce_name);
  const Device device = indptr.device();
  const DeviceGuard guard(device);
  CHECK_VALUE(by_src || !need_lhs, "by_src is false; the gradient of lhs needs out-edges (CSR)");
  CHECK_VALUE((reads_lhs(op) || !need_lhs) && (reads_rhs(op) || !need_rhs), reads_lhs(op) ? "need_rhs" : "need_lhs",
              " is True; expected False, because ", op_name, " does not read that operand");
  CHECK_VALUE(!is_argument_reduce(reduce) || arg_data, "arg is None; ", reduce_name, " needs it");
  const BroadcastPlan plan = plan_of(op, trailing(lhs_shape), trailing(rhs_shape));
  const Tensor arg = arg_data && is_argument_reduce(reduce) ? arg_data->contiguous() : Tensor();
  Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  put_schedule(topology, schedule, indptr);
  const Backward b{backend_of(device),
                   topology,
                   op,
                   feature_of(grad_out, "grad", Target::kCol, device),
                   feature_of(lhs_data, "lhs", by_src ? Target::kRow : Target::kCol, device),
                   feature_of(rhs_data, "rhs", Target::kEdge, device),
                   mean_indptr_of(reduce, in_indptr, indptr),
                   arg.defined() ? &arg : nullptr,
                   plan};
  const Declared lhs{lhs_shape, lhs_dtype, need_lhs}, rhs{rhs_shape, rhs_dtype, need_rhs};
  check_backward(b, by_src, in_indptr.numel() - 1, lhs, rhs);
  if (arg.defined()) check_arg(arg, grad_out, indptr);
  const Topology in_edges = topology_of(in_indptr, in_indices, in_edge_ids, indices.numel());

  Tensor grad_lhs = lhs.empty_gradient(grad_out), grad_rhs = rhs.empty_gradient(grad_out);
  switch (path_of(b, dtype_of(rhs_dtype, "rhs"), by_src, need_lhs, need_rhs)) {
    case BackwardPath::kNone: break;
    case BackwardPath::kSumLhs: sum_grad_lhs(b, grad_lhs); break;
    case BackwardPath::kMulBoth: mul_grad_both(b, in_edges, grad_lhs, grad_rhs); break;
    case BackwardPath::kEdgeSum: edge_sum_gradients(b, lhs, rhs, grad_lhs, grad_rhs); break;
    case BackwardPath::kEdgeRhs: edge_grad_rhs(b, grad_rhs); break;
    case BackwardPath::kExtremumLhs: extremum_grad_lhs(b, reduce, in_edges, grad_lhs); break;
    case BackwardPath::kGeneral: general_backward(b, by_src, grad_lhs, grad_rhs); break;
  }
  return {grad_lhs, grad_rhs};
}

void register_spmm(Library& m) {
  m.impl<&gspmm>("gspmm");
  m.impl<&gspmm_backward>("gspmm_backward");
}

}  // namespace halfgnn
