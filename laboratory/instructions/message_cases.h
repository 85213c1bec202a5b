// Cases of operators on rows of nodes with rows of edges.
#pragma once

#include <cstring>

#include "context.h"

namespace halfgnn {
namespace {

// Messages of a node and an edge of the same width. nodes: the context of their rows.
Call edge_sum(const Context& c, Op op, const Context& nodes) {
  EdgeSumArgs args;
  args.topology = c.graph.csc;
  args.op = op;
  args.feat = nodes.nodes();
  args.feat_rows = kNodes;
  args.edge = c.edge_rows();
  args.edge_type = c.shape.type;
  args.type = args.out_type = nodes.shape.type;
  args.dim = c.shape.len();
  args.out = nodes.new_nodes();
  return [=] { c.kernels.edge_sum.forward(args, 0, kNodes); };
}
Call edge_sum_backward(const Context& c, Op op, const Context& nodes) {
  EdgeSumBackwardArgs args;
  args.topology = c.graph.csr;
  args.op = op;
  args.feat = nodes.nodes();
  args.edge = c.edge_rows();
  args.grad = nodes.nodes();
  args.grad_rows = kNodes;
  args.edge_type = c.shape.type;
  args.type = args.grad_type = nodes.shape.type;
  args.dim = c.shape.len();
  args.grad_feat = nodes.new_nodes();
  args.grad_edge = c.new_edge_rows();
  return [=] { c.kernels.edge_sum.backward(args, 0, kNodes); };
}
Call mul_rows(const Context& c) { return edge_sum(c, Op::kMul, c); }
Call mul_rows_backward(const Context& c) { return edge_sum_backward(c, Op::kMul, c); }
Call sub_rows(const Context& c) { return edge_sum(c, Op::kSub, c); }
Call sub_rows_backward(const Context& c) { return edge_sum_backward(c, Op::kSub, c); }
Call relu_add_rows(const Context& c) { return edge_sum(c, Op::kReluAdd, c); }
Call relu_add_rows_backward(const Context& c) { return edge_sum_backward(c, Op::kReluAdd, c); }
Call relu_add_rows_to_fp32(const Context& c) { return edge_sum(c, Op::kReluAdd, with_fp32(c)); }
Call relu_add_rows_to_fp32_backward(const Context& c) { return edge_sum_backward(c, Op::kReluAdd, with_fp32(c)); }

// The edges of the graph as a list that is not sorted by its rows, in fp32.
CooSumArgs coo_args(const Context& c) {
  CooSumArgs args;
  const Topology& topology = c.graph.csc;
  args.edges = {topology.indices, c.graph.csr.indices, c.graph.num_edges, topology.is_int64};
  args.feat = c.nodes();
  args.dim = c.shape.len();
  args.out = c.new_nodes();
  return args;
}
Call coo_sum(const Context& c, const CooSumArgs& args) {
  return [=] {
    memset(args.out, 0, static_cast<size_t>(kNodes * args.dim) * sizeof(float));
    c.kernels.coo_sum.sum(args, 0, args.dim);
  };
}
Call coo_copies(const Context& c) { return coo_sum(c, coo_args(c)); }
Call coo_weighted(const Context& c) {
  CooSumArgs args = coo_args(c);
  args.weight = c.edges();
  return coo_sum(c, args);
}
Call coo_edge_rows(const Context& c) {
  CooSumArgs args = coo_args(c);
  args.edges.col = nullptr;
  args.feat = c.edge_rows();
  return coo_sum(c, args);
}
Call coo_relu_add(const Context& c) {
  CooSumArgs args = coo_args(c);
  args.addend = c.edge_rows();
  args.has_relu = true;
  return coo_sum(c, args);
}

Call u_add_v_add_e(const Context& c) {
  SddmmAddArgs args;
  args.topology = c.graph.csc;
  args.col = c.nodes();
  args.col_rows = kNodes;
  args.row = c.nodes();
  args.edge = c.edge_rows();
  args.type = args.out_type = c.shape.type;
  args.dim = c.shape.len();
  args.out = c.new_edge_rows();
  return [=] { c.kernels.sddmm.add(args, 0, kNodes); };
}

GatedSumArgs gated_args(const Context& c, bool has_values) {
  GatedSumArgs args;
  args.topology = c.graph.csc;
  args.num_cols = kNodes;
  args.dim = c.shape.len();
  args.type = c.shape.type;
  args.value = c.nodes();
  args.gate_src = c.nodes();
  args.gate_dst = c.nodes();
  args.gate_edge = c.edge_rows();
  if (has_values) args.edge_value = c.edge_rows();
  args.normalize = true;
  args.eps = 1e-6;
  args.out = c.new_nodes();
  return args;
}
Call gated_sum_of(const Context& c, bool has_values) {
  GatedSumArgs args = gated_args(c, has_values);
  args.edges = c.new_edge_rows();
  args.scale = c.accumulators(kNodes * c.shape.len());
  args.quotient = c.accumulators(kNodes * c.shape.len());
  return [=] { c.kernels.gated_sum.forward(args, 0, kNodes); };
}
// One pass over destinations and one over sources.
Call gated_sum_backward_of(const Context& c, bool has_values) {
  const GatedSumArgs forward = gated_args(c, has_values);
  GatedSumBackwardArgs by_dst;
  by_dst.topology = c.graph.csc;
  by_dst.num_cols = kNodes;
  by_dst.dim = forward.dim;
  by_dst.type = forward.type;
  by_dst.value = forward.value;
  by_dst.gate_src = forward.gate_src;
  by_dst.gate_dst = forward.gate_dst;
  by_dst.gate_edge = forward.gate_edge;
  by_dst.edge_value = forward.edge_value;
  by_dst.grad = c.memory.values(DType::kFloat, kNodes * c.shape.len());
  by_dst.shift = c.memory.values(DType::kFloat, kNodes * c.shape.len());
  by_dst.grad_gate = c.new_nodes();
  by_dst.grad_gate_edge = c.new_edge_rows();
  if (has_values) by_dst.grad_edge_value = c.new_edge_rows();
  GatedSumBackwardArgs by_src = by_dst;
  by_src.topology = c.graph.csr;
  by_src.by_src = true;
  by_src.grad_value = c.new_nodes();
  by_src.grad_gate = c.new_nodes();
  by_src.grad_gate_edge = by_src.grad_edge_value = nullptr;
  return [=] {
    c.kernels.gated_sum.backward(by_dst, 0, kNodes);
    c.kernels.gated_sum.backward(by_src, 0, kNodes);
  };
}
Call gated_sum(const Context& c) { return gated_sum_of(c, false); }
Call gated_sum_backward(const Context& c) { return gated_sum_backward_of(c, false); }
Call gated_sum_values(const Context& c) { return gated_sum_of(c, true); }
Call gated_sum_values_backward(const Context& c) { return gated_sum_backward_of(c, true); }

}  // namespace
}  // namespace halfgnn
