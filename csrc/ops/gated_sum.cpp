// gated_sum and gated_sum_backward: checks, allocation, what the backward's passes read of destinations.

#include "../torch/device.h"
#include "checks.h"
#include "register.h"
#include "results.h"

namespace halfgnn {
namespace {

// What both directions read.
struct GateOperands {
  Feature value, gate_src, gate_dst, gate_edge, edge_value;
};

void check_like(const Feature& feature, const char* name, const Feature& value) {
  CHECK_VALUE(feature.tensor.sizes().slice(1) == value.tensor.sizes().slice(1), name, " has shape ",
              feature.tensor.sizes(), " and value ", value.tensor.sizes(), "; expected equal trailing shapes");
  CHECK_TYPE(feature.operand.type == value.operand.type, name, " has dtype ", dtype_name(feature.tensor.scalar_type()),
             " and value ", dtype_name(value.tensor.scalar_type()), "; expected equal dtypes");
}

// Rows of edges, or none.
void check_edges_like(const Feature& feature, const char* name, const Feature& value, const Topology& csc) {
  if (!feature.defined()) return;
  check_like(feature, name, value);
  check_edge_rows(feature, name, csc.num_edges);
}

GateOperands gate_operands(const Topology& csc, const Device& device, const Tensor& value, const Tensor& gate_src,
                           const Tensor& gate_dst, const OptionalTensor& gate_edge, const OptionalTensor& edge_value) {
  GateOperands x{
      feature_of(value, "value", Target::kCol, device), feature_of(gate_src, "gate_src", Target::kCol, device),
      feature_of(gate_dst, "gate_dst", Target::kRow, device), feature_of(gate_edge, "gate_edge", Target::kEdge, device),
      feature_of(edge_value, "edge_value", Target::kEdge, device)};
  check_like(x.gate_src, "gate_src", x.value);
  check_like(x.gate_dst, "gate_dst", x.value);
  CHECK_VALUE(gate_src.size(0) == value.size(0), "gate_src has shape ", gate_src.sizes(), " and value ", value.sizes(),
              "; expected equal shapes");
  check_row_rows(x.gate_dst, "gate_dst", csc.num_rows);
  check_edges_like(x.gate_edge, "gate_edge", x.value, csc);
  check_edges_like(x.edge_value, "edge_value", x.value, csc);
  return x;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gated_sum(const Tensor& indptr, const Tensor& indices,
                                                     const OptionalTensor& edge_ids, const Tensor& value,
                                                     const Tensor& gate_src, const Tensor& gate_dst,
                                                     const OptionalTensor& gate_edge, const OptionalTensor& edge_value,
                                                     bool normalize, double eps, bool return_edges, bool save,
                                                     bool short_rows) {
  const Device device = indptr.device();
  const DeviceGuard guard(device);
  const Topology topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  const GateOperands x = gate_operands(topology, device, value, gate_src, gate_dst, gate_edge, edge_value);
  const Shape columns = trailing(value.sizes());
  const bool keeps = save && normalize;
  const auto rows = with_rows(topology.num_rows, columns);
  const auto wide = value.options().dtype(accumulator(value));
  Tensor out = new_result(rows, value.options());
  Tensor edges =
      return_edges ? new_result(with_rows(topology.num_edges, columns), value.options()) : empty({0}, value.options());
  Tensor scale = keeps ? new_result(rows, wide) : empty({0}, wide);
  Tensor quotient = keeps ? new_result(rows, wide) : empty({0}, wide);
  GatedSumArgs args;
  args.topology = topology;
  args.num_cols = x.value.operand.rows;
  args.dim = x.value.operand.len;
  args.type = x.value.operand.type;
  args.value = x.value.operand.data;
  args.gate_src = x.gate_src.operand.data;
  args.gate_dst = x.gate_dst.operand.data;
  args.gate_edge = x.gate_edge.operand.data;
  args.edge_value = x.edge_value.operand.data;
  args.normalize = normalize;
  args.eps = eps;
  args.out = out.mutable_data_ptr();
  args.edges = data_or_null(edges, return_edges);
  args.scale = data_or_null(scale, keeps);
  args.quotient = data_or_null(quotient, keeps);
  if (args.dim > 0) backend_of(device).gated_sum(args);
  return {out, edges, scale, quotient};
}

// Rows of a gradient or of what the forward kept: one per destination.
Feature of_destinations(const Tensor& x, const char* name, const Tensor& gate_dst, const Device& device) {
  CHECK_VALUE(x.sizes() == gate_dst.sizes(), name, " has shape ", x.sizes(), "; expected ", gate_dst.sizes());
  return feature_of(x, name, Target::kRow, device);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gated_sum_backward(
    const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, const Tensor& out_indptr,
    const Tensor& out_indices, const OptionalTensor& out_edge_ids, const Tensor& value, const Tensor& gate_src,
    const Tensor& gate_dst, const OptionalTensor& gate_edge, const OptionalTensor& edge_value, bool normalize,
    const Tensor& grad, const OptionalTensor& grad_edges, const Tensor& scale, const Tensor& quotient, bool need_value,
    bool need_gate_src, bool need_gate_dst, bool need_gate_edge, bool need_edge_value, bool short_rows,
    bool out_short_rows) {
  const Device device = indptr.device();
  const DeviceGuard guard(device);
  const Backend& backend = backend_of(device);
  const Topology csc = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  const Topology csr = topology_of(out_indptr, out_indices, out_edge_ids, indices.numel(), out_short_rows);
  const GateOperands x = gate_operands(csc, device, value, gate_src, gate_dst, gate_edge, edge_value);
  CHECK_VALUE(csr.num_rows == value.size(0), "out_indptr has ", csr.num_rows, " rows; expected ", value.size(0));
  CHECK_VALUE(!need_gate_edge || x.gate_edge.defined(), "gate_edge is None; it has no gradient");
  CHECK_VALUE(!need_edge_value || x.edge_value.defined(), "edge_value is None; it has no gradient");
  CHECK_TYPE(grad.scalar_type() == value.scalar_type(), "grad has dtype ", dtype_name(grad.scalar_type()),
             "; expected ", dtype_name(value.scalar_type()));
  Feature grad_rows = of_destinations(grad, "grad", gate_dst, device), shift;
  const Feature edges = feature_of(grad_edges, "grad_edges", Target::kEdge, device);
  check_edges_like(edges, "grad_edges", x.value, csc);
  if (normalize) {
    const Feature factor = of_destinations(scale, "scale", gate_dst, device);
    const Feature kept = of_destinations(quotient, "quotient", gate_dst, device);
    for (const Feature* wide : {&factor, &kept})
      CHECK_TYPE(wide->tensor.scalar_type() == accumulator(value), "scale and quotient have dtypes ",
                 dtype_name(scale.scalar_type()), " and ", dtype_name(quotient.scalar_type()), "; expected ",
                 dtype_name(accumulator(value)));
    grad_rows = of_destinations(mul(grad, factor.tensor), "grad", gate_dst, device);
    shift = of_destinations(mul(grad_rows.tensor, kept.tensor), "shift", gate_dst, device);
  }
  const auto gradient_of = [](const Tensor& operand, bool wanted) {
    return wanted ? new_result(operand.sizes(), operand.options()) : empty({0}, operand.options());
  };
  Tensor grad_value = gradient_of(value, need_value), grad_gate_src = gradient_of(gate_src, need_gate_src);
  Tensor grad_gate_dst = gradient_of(gate_dst, need_gate_dst);
  Tensor grad_gate_edge = gradient_of(gate_edge ? *gate_edge : value, need_gate_edge);
  Tensor grad_edge_value = gradient_of(edge_value ? *edge_value : value, need_edge_value);

  GatedSumBackwardArgs args;
  args.dim = x.value.operand.len;
  args.type = x.value.operand.type;
  args.value = x.value.operand.data;
  args.gate_src = x.gate_src.operand.data;
  args.gate_dst = x.gate_dst.operand.data;
  args.gate_edge = x.gate_edge.operand.data;
  args.edge_value = x.edge_value.operand.data;
  args.grad = grad_rows.operand.data;
  args.grad_type = grad_rows.operand.type;
  args.shift = shift.operand.data;
  args.grad_edges = edges.operand.data;
  if ((need_gate_dst || need_gate_edge || need_edge_value) && args.dim > 0) {
    GatedSumBackwardArgs by_dst = args;
    by_dst.topology = csc;
    by_dst.num_cols = csr.num_rows;
    by_dst.grad_gate = data_or_null(grad_gate_dst, need_gate_dst);
    by_dst.grad_gate_edge = data_or_null(grad_gate_edge, need_gate_edge);
    by_dst.grad_edge_value = data_or_null(grad_edge_value, need_edge_value);
    backend.gated_sum_backward(by_dst);
  }
  if ((need_value || need_gate_src) && args.dim > 0) {
    GatedSumBackwardArgs by_src = args;
    by_src.topology = csr;
    by_src.by_src = true;
    by_src.num_cols = csc.num_rows;
    by_src.grad_value = data_or_null(grad_value, need_value);
    by_src.grad_gate = data_or_null(grad_gate_src, need_gate_src);
    backend.gated_sum_backward(by_src);
  }
  return {grad_value, grad_gate_src, grad_gate_dst, grad_gate_edge, grad_edge_value};
}

}  // namespace

void register_gated_sum(Library& m) {
  m.impl<&gated_sum>("gated_sum");
  m.impl<&gated_sum_backward>("gated_sum_backward");
}

}  // namespace halfgnn
