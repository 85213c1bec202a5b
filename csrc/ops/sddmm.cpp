// gsddmm, gsddmm_backward and u_add_v_add_e: checks, allocation, choice of kernel.

#include "../torch/device.h"
#include "checks.h"
#include "register.h"
#include "results.h"

namespace halfgnn {
namespace {

Shape shape_of(const Feature& feature) { return feature.defined() ? trailing(feature.tensor.sizes()) : Shape{}; }

// Whether the vector kernel takes it: a dot of whole rows, of which one is at the adjacency's row.
bool is_vector_dot(const Backend& backend, Op op, const Operand& lhs, const Operand& rhs, DType out,
                   const BroadcastPlan& plan) {
  return op == Op::kDot && plan.is_plain_dot() && backend.has_dot_kernel(lhs.type, rhs.type, out, plan.inner) &&
         (lhs.target == Target::kRow) != (rhs.target == Target::kRow);
}

// Whether the elementwise kernel takes it: no broadcasting, and at least one value per edge.
bool is_elementwise(const Backend& backend, Op op, const Operand& lhs, const Operand& rhs, const BroadcastPlan& plan) {
  const bool has_types = backend.mixes_elementwise || is_copy(op) || lhs.type == rhs.type;
  const DType type = reads_lhs(op) ? lhs.type : rhs.type;
  return op != Op::kDot && plan.is_elementwise() && has_types && type != DType::kDouble && plan.out_len > 0;
}

// The dtype of a result unless another is asked for: fp32 if the operands' types are mixed.
ScalarType own_type_of(const Feature& lhs, const Feature& rhs) {
  if (!lhs.defined()) return rhs.tensor.scalar_type();
  const bool is_mixed = rhs.defined() && lhs.operand.type != rhs.operand.type;
  return is_mixed ? ScalarType::Float : lhs.tensor.scalar_type();
}

Tensor gsddmm(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, string_view op_name,
              const OptionalTensor& lhs_data, const OptionalTensor& rhs_data, string_view lhs_target,
              string_view rhs_target, std::optional<ScalarType> out_dtype) {
  const DeviceGuard guard(indptr.device());
  const Backend& backend = backend_of(indptr.device());
  const Op op = parse_op(op_name, true);
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel());
  const Target lhs_at = parse_target(lhs_target, false), rhs_at = parse_target(rhs_target, false);  // CSC: v is the row
  const Feature lhs =
      feature_of(reads_lhs(op) ? OptionalRef(lhs_data) : OptionalRef(), "lhs_data", lhs_at, indptr.device());
  const Feature rhs =
      feature_of(reads_rhs(op) ? OptionalRef(rhs_data) : OptionalRef(), "rhs_data", rhs_at, indptr.device());
  check_operands_present(op, lhs, rhs, op_name);
  for (const auto* operand : {&lhs, &rhs}) {
    const char* name = operand == &lhs ? "lhs_data" : "rhs_data";
    check_edge_rows(*operand, name, topology.num_edges);
    check_row_rows(*operand, name, topology.num_rows);
  }
  check_operand_types(op, lhs, rhs);
  const BroadcastPlan plan = plan_of(op, shape_of(lhs), shape_of(rhs));

  const Tensor& feat = lhs.defined() ? lhs.tensor : rhs.tensor;
  const auto type = result_type(own_type_of(lhs, rhs), out_dtype);
  Tensor out = new_result(with_rows(topology.num_edges, plan.out_shape), feat.options().dtype(type));
  SddmmArgs args;
  args.topology = topology;
  args.op = op;
  args.lhs = lhs.operand;
  args.rhs = rhs.operand;
  args.broadcast = plan.view();
  args.out_len = plan.out_len;
  args.out = out.mutable_data_ptr();
  args.out_type = dtype_of(type, "out");
  const auto kernel = is_vector_dot(backend, op, lhs.operand, rhs.operand, args.out_type, plan) ? backend.sddmm_dot
                      : is_elementwise(backend, op, lhs.operand, rhs.operand, plan) ? backend.sddmm_elementwise
                                                                                    : backend.sddmm;
  kernel(args);
  return out;
}

// The operand's gradient as a sum of rows: of grad for add, sub and copies; of the other operand, weighted by grad, for
// dot. Returns false if the vector kernel does not take it.
bool sum_gradient(const Backend& backend, const Topology& topology, Op op, bool lhs_side, const Feature& grad,
                  const Feature& other, const BroadcastPlan& plan, Tensor& out) {
  SpmmSumArgs args;
  args.topology = topology;
  if (op == Op::kDot) {
    if (!plan.is_plain_dot() || other.operand.target == Target::kRow) return false;
    args.feat = other.operand.data;
    args.feat_rows = other.operand.rows;
    args.feat_by_edge = other.operand.target == Target::kEdge;
    args.type = other.operand.type;
    args.weight = grad.operand.data;
    args.weight_type = grad.operand.type;
    args.heads = plan.outer;
    args.dim = plan.inner;
  } else {
    const bool copies = copies_gradient(op) && (lhs_side ? plan.lhs_len : plan.rhs_len) == plan.out_len;
    if (!copies) return false;
    args.feat = grad.operand.data;
    args.feat_rows = grad.operand.rows;
    args.feat_by_edge = true;
    args.type = grad.operand.type;
    args.weight_type = grad.operand.type;
    args.dim = plan.out_len;
    args.factor = op == Op::kSub && !lhs_side ? -1.f : 1.f;
  }
  if (!backend.has_sum_kernel(args.type, args.heads, args.dim)) return false;
  args.out = out.mutable_data_ptr();
  args.out_type = dtype_of(out.scalar_type(), "out");
  backend.spmm_sum(args);
  return true;
}

// The gradient of a factor at the row of a product without broadcasting: the sum of the other factors of its edges,
// each times grad. Returns false if the kernel does not take it.
bool product_gradient(const Backend& backend, const Topology& topology, Op op, const Feature& grad,
                      const Feature& other, const BroadcastPlan& plan, Tensor& out) {
  if (op != Op::kMul || !plan.is_elementwise() || other.operand.target != Target::kCol) return false;
  EdgeSumArgs args;
  args.topology = topology;
  args.feat = other.operand.data;
  args.feat_rows = other.operand.rows;
  args.edge = grad.operand.data;
  args.type = other.operand.type;
  args.edge_type = grad.operand.type;
  args.dim = plan.out_len;
  args.out = out.mutable_data_ptr();
  args.out_type = dtype_of(out.scalar_type(), "out");
  const bool has_type = args.out_type == args.type || args.out_type == DType::kFloat;
  if (!has_type || !backend.has_edge_sum_kernel(args.type, args.dim)) return false;
  backend.edge_sum(args);
  return true;
}

Tensor gsddmm_backward(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, bool by_src,
                       string_view op_name, string_view side_name, const Tensor& grad_out,
                       const OptionalTensor& lhs_data, const OptionalTensor& rhs_data, string_view lhs_target,
                       string_view rhs_target, IntArrayRef lhs_shape, IntArrayRef rhs_shape, ScalarType dtype,
                       bool short_rows) {
  const Op op = parse_op(op_name, true);
  CHECK_VALUE(side_name == "lhs" || side_name == "rhs", "side is '", side_name, "'; expected lhs or rhs");
  const bool lhs_side = side_name == "lhs";
  const Device device = indptr.device();
  const DeviceGuard guard(device);
  const Backend& backend = backend_of(device);
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  const Target lhs_at = parse_target(lhs_target, by_src), rhs_at = parse_target(rhs_target, by_src);
  const Feature grad = feature_of(grad_out, "grad", Target::kEdge, device);
  // An operand that is not read is not made contiguous either.
  const auto read = [&](const OptionalTensor& data, Side side) {
    return gradient_reads(op, side, lhs_side, !lhs_side) ? OptionalRef(data) : OptionalRef();
  };
  const Feature lhs = feature_of(read(lhs_data, Side::kLhs), "lhs", lhs_at, device),
                rhs = feature_of(read(rhs_data, Side::kRhs), "rhs", rhs_at, device);
  const Target own = lhs_side ? lhs_at : rhs_at;
  CHECK_VALUE(own != Target::kCol, "by_src is ", by_src, "; the gradient needs rows that are the operand's nodes");
  const BroadcastPlan plan = plan_of(op, trailing(lhs_shape), trailing(rhs_shape));
  CHECK_VALUE(grad.operand.len == plan.out_len, "grad has shape ", grad_out.sizes(), "; expected trailing shape ",
              IntArrayRef(plan.out_shape));
  check_edge_rows(grad, "grad", topology.num_edges);
  // The dtype is that of the side whose gradient it is. That of the other side may mix with it.
  const auto check_side = [&](const Feature& feature, const char* name, Side side, Target target, IntArrayRef shape) {
    const bool is_own = lhs_side == (side == Side::kLhs);
    const auto type = is_own || !feature.defined() ? dtype : feature.tensor.scalar_type();
    check_types_of_two(dtype, lhs_side ? "lhs" : "rhs", type, name);
    check_declared(feature, name, target, gradient_reads(op, side, lhs_side, !lhs_side), shape, type, topology);
  };
  if (reads_lhs(op)) check_side(lhs, "lhs", Side::kLhs, lhs_at, lhs_shape);
  if (reads_rhs(op)) check_side(rhs, "rhs", Side::kRhs, rhs_at, rhs_shape);
  CHECK_VALUE(lhs_side ? reads_lhs(op) : reads_rhs(op), "side is ", side_name, ", which ", op_name, " does not read");
  check_gradient_type(grad_out, dtype);
  const auto shape = lhs_side ? lhs_shape : rhs_shape;

  Tensor out = new_result(shape, grad_out.options().dtype(dtype));
  const Feature& other = lhs_side ? rhs : lhs;
  if (own == Target::kRow && (sum_gradient(backend, topology, op, lhs_side, grad, other, plan, out) ||
                              product_gradient(backend, topology, op, grad, other, plan, out)))
    return out;
  BackwardArgs args;
  args.topology = topology;
  args.op = op;
  args.grad = grad.operand;
  args.lhs = lhs.operand;
  args.lhs.len = plan.lhs_len;
  args.rhs = rhs.operand;
  args.rhs.len = plan.rhs_len;
  args.broadcast = plan.view();
  args.message_len = plan.outer * plan.inner;
  if (out.numel())
    (lhs_side ? args.grad_lhs : args.grad_rhs) = {out.mutable_data_ptr(), dtype_of(dtype, "dtype"),
                                                  own == Target::kEdge};
  backend.backward(args);
  return out;
}

Tensor u_add_v_add_e(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& x_data,
                     const Tensor& y_data, const Tensor& z_data, std::optional<ScalarType> out_dtype) {
  const Device device = indptr.device();
  const DeviceGuard guard(device);
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel());
  const Feature x = feature_of(x_data, "x", Target::kCol, device), y = feature_of(y_data, "y", Target::kRow, device),
                z = feature_of(z_data, "z", Target::kEdge, device);
  check_row_rows(y, "y", topology.num_rows);
  check_edge_rows(z, "z", topology.num_edges);
  for (const auto& [name, operand] : {std::pair{"y", &y}, std::pair{"z", &z}}) {
    CHECK_VALUE(operand->tensor.sizes().slice(1) == x.tensor.sizes().slice(1), name, " has shape ",
                operand->tensor.sizes(), " and x ", x.tensor.sizes(), "; expected equal trailing shapes");
    CHECK_TYPE(operand->operand.type == x.operand.type, name, " has dtype ", dtype_name(operand->tensor.scalar_type()),
               " and x ", dtype_name(x.tensor.scalar_type()), "; expected equal dtypes");
  }
  const auto type = result_type(x.tensor.scalar_type(), out_dtype);
  Tensor out = new_result(z.tensor.sizes(), z.tensor.options().dtype(type));
  if (out.numel() == 0) return out;
  SddmmAddArgs args;
  args.topology = topology;
  args.col = x.operand.data;
  args.col_rows = x.operand.rows;
  args.row = y.operand.data;
  args.edge = z.operand.data;
  args.type = x.operand.type;
  args.dim = x.operand.len;
  args.out = out.mutable_data_ptr();
  args.out_type = dtype_of(type, "out");
  backend_of(device).sddmm_add(args);
  return out;
}

}  // namespace

void register_sddmm(Library& m) {
  m.impl<&gsddmm>("gsddmm");
  m.impl<&gsddmm_backward>("gsddmm_backward");
  m.impl<&u_add_v_add_e>("u_add_v_add_e");
}

}  // namespace halfgnn
