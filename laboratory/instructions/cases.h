// Calls of CPU kernels on a fixed graph, for programs without PyTorch: driver.cpp counts their instructions,
// compare.cpp compares their results.
#pragma once

#include "context.h"
#include "message_cases.h"

namespace halfgnn {
namespace {

SpmmSumArgs sum_args(const Context& c) {
  SpmmSumArgs args;
  args.topology = c.graph.csc;
  args.feat = c.nodes();
  args.feat_rows = kNodes;
  args.type = args.weight_type = args.out_type = c.shape.type;
  args.heads = c.shape.heads;
  args.dim = c.shape.dim;
  args.out = c.new_nodes();
  return args;
}
Call copy_u_sum(const Context& c) {
  const SpmmSumArgs args = sum_args(c);
  return [=] { c.kernels.spmm.sum(args, 0, kNodes); };
}
Call u_mul_e_sum(const Context& c) {
  SpmmSumArgs args = sum_args(c);
  args.weight = c.edges();
  return [=] { c.kernels.spmm.sum(args, 0, kNodes); };
}
Call u_mul_e_sum_of_fp32(const Context& c) {
  SpmmSumArgs args = sum_args(with_fp32(c));
  args.weight = c.edges();
  args.weight_type = c.shape.type;
  return [=] { c.kernels.spmm.sum(args, 0, kNodes); };
}

Operand operand(const Context& c, const void* data, int64_t len, Target target) {
  return {data, c.shape.type, len, target == Target::kEdge ? c.graph.num_edges : kNodes, target};
}
Call general_spmm(const Context& c, Op op, Reduce reduce, const Operand& rhs, const BroadcastPlan& plan) {
  const auto shared = std::make_shared<BroadcastPlan>(plan);
  SpmmArgs args;
  args.topology = c.graph.csc;
  args.op = op;
  args.reduce = reduce;
  args.lhs = operand(c, c.nodes(), c.shape.len(), Target::kCol);
  args.rhs = rhs;
  args.broadcast = shared->view();
  args.out_len = shared->out_len;
  args.out = c.new_nodes();
  args.arg =
      is_argument_reduce(reduce) ? c.memory.empty(DType::kDouble, kNodes * c.shape.len(), Result::kIds) : nullptr;
  args.out_type = c.shape.type;
  return [=, kept = shared] { c.kernels.spmm.general(args, 0, kNodes); };
}
Call copy_u_max_general(const Context& c) {
  const Shape shape{c.shape.heads, c.shape.dim};
  return general_spmm(c, Op::kCopyLhs, Reduce::kMax, {}, BroadcastPlan(shape, shape, Op::kCopyLhs));
}
CopyReduceArgs max_args(const Context& c) {
  CopyReduceArgs args;
  args.topology = c.graph.csc;
  args.feat = c.nodes();
  args.feat_rows = kNodes;
  args.type = args.out_type = c.shape.type;
  args.dim = c.shape.len();
  args.max = c.new_nodes();
  return args;
}
CopyReduceArgs reduce_args(const Context& c) {
  CopyReduceArgs args = max_args(c);
  args.arg_max = c.memory.empty(DType::kFloat, kNodes * c.shape.len(), Result::kIds);
  return args;
}
CopyReduceArgs four_args(const Context& c) {
  CopyReduceArgs args = reduce_args(c);
  args.mean = c.new_nodes();
  args.min = c.new_nodes();
  args.std = c.new_nodes();
  args.eps = 1e-4f;  // gradients through a smaller deviation are rounding, which tables need not share
  args.arg_min = c.memory.empty(DType::kFloat, kNodes * c.shape.len(), Result::kIds);
  args.kept_mean = static_cast<float*>(c.accumulators(kNodes * c.shape.len()));
  args.kept_std = static_cast<float*>(c.accumulators(kNodes * c.shape.len()));
  return args;
}
Call copy_u_max(const Context& c) {
  const CopyReduceArgs args = reduce_args(c);
  return [=] { c.kernels.copy_reduce.forward(args, 0, kNodes); };
}
// The mean, the maximum, the minimum and the standard deviation, for training.
Call copy_u_reduce(const Context& c) {
  const CopyReduceArgs args = four_args(c);
  return [=] { c.kernels.copy_reduce.forward(args, 0, kNodes); };
}
Call copy_u_reduce_backward(const Context& c) {
  const CopyReduceArgs forward = four_args(c);
  c.kernels.copy_reduce.forward(forward, 0, kNodes);
  CopyReduceBackwardArgs args;
  args.topology = c.graph.csr;
  args.in_edges.indptr = c.graph.csc.indptr;
  args.feat = forward.feat;
  args.type = args.grad_type = c.shape.type;
  args.mean = c.nodes();
  args.max = c.nodes();
  args.min = c.nodes();
  args.std = c.nodes();
  args.arg_max = static_cast<const int32_t*>(forward.arg_max);
  args.arg_min = static_cast<const int32_t*>(forward.arg_min);
  args.kept_mean = forward.kept_mean;
  args.kept_std = forward.kept_std;
  args.num_nodes = kNodes;
  args.dim = c.shape.len();
  args.grad_feat = c.new_nodes();
  float* records = static_cast<float*>(c.accumulators(2 * kNodes * args.dim));
  return [=] {
    c.kernels.copy_reduce.records(args, records, 0, kNodes);
    c.kernels.copy_reduce.gradient(args, records, 0, kNodes);
  };
}
// The gradient of the maximum that is added to the sources of winners, of all columns.
Call copy_u_max_backward(const Context& c) {
  const CopyReduceArgs forward = reduce_args(c);
  c.kernels.copy_reduce.forward(forward, 0, kNodes);
  CopyReduceBackwardArgs args;
  args.topology = c.graph.csr;
  args.in_edges = c.graph.csc;
  args.type = args.grad_type = c.shape.type;
  args.max = c.nodes();
  args.arg_max = static_cast<const int32_t*>(forward.arg_max);
  args.num_nodes = kNodes;
  args.dim = c.shape.len();
  args.grad_feat = c.new_nodes();
  const int64_t slices = slices_of(args.dim);
  auto* sources = static_cast<uint32_t*>(c.memory.empty(DType::kFloat, slices * kNodes * kWinnerColumns, Result::kIds));
  auto* sums = static_cast<double*>(c.memory.empty(DType::kDouble, (kNodes + 1) * kWinnerColumns));
  return [=] {
    const WinnerColumns columns{args, 0, args.dim, sources, args.grad_feat, args.type};
    c.kernels.copy_reduce.winners(columns, 0, kNodes);
    for (int64_t slice = 0; slice < slices; ++slice) c.kernels.copy_reduce.scatter(columns, slice, 0, kNodes, sums);
  };
}
// The gradients of a maximum of rows of edges, which only the general kernel makes.
Call copy_e_max_backward(const Context& c) {
  CopyReduceArgs forward = max_args(c);
  forward.arg_is_int64 = c.graph.csc.is_int64;
  forward.arg_max = c.memory.bytes(kNodes * c.shape.len() * size_of(DType::kDouble));
  c.kernels.copy_reduce.forward(forward, 0, kNodes);
  const Shape shape{c.shape.len()};
  const auto plan = std::make_shared<BroadcastPlan>(shape, shape, Op::kCopyRhs);
  BackwardArgs args;
  args.topology = c.graph.csc;
  args.op = Op::kCopyRhs;
  args.grad = operand(c, c.nodes(), c.shape.len(), Target::kRow);
  args.rhs.len = args.message_len = c.shape.len();
  args.broadcast = plan->view();
  args.arg = forward.arg_max;
  args.grad_rhs = {c.new_edge_rows(), c.shape.type, true};
  return [=] { c.kernels.backward.general(args, 0, plan ? kNodes : 0); };
}
// What the vector kernels are there to avoid: the controls of the comparison.
Call u_mul_e_sum_general(const Context& c) {
  const BroadcastPlan plan({c.shape.heads, c.shape.dim}, {c.shape.heads, 1}, Op::kMul);
  return general_spmm(c, Op::kMul, Reduce::kSum, operand(c, c.edges(), c.shape.heads, Target::kEdge), plan);
}

Call mul_backward(const Context& c, const Context& nodes) {
  MulBackwardArgs args;
  args.topology = c.graph.csr;
  args.feat = nodes.nodes();
  args.grad = nodes.nodes();
  args.grad_rows = kNodes;
  args.type = args.grad_type = nodes.shape.type;
  args.weight_type = c.shape.type;
  args.weight = c.edges();
  args.heads = c.shape.heads;
  args.dim = c.shape.dim;
  args.grad_feat = nodes.new_nodes();
  args.grad_weight = c.new_edges();
  return [=] { c.kernels.backward.mul(args, 0, kNodes); };
}
Call u_mul_e_sum_backward(const Context& c) { return mul_backward(c, c); }
Call u_mul_e_sum_of_fp32_backward(const Context& c) { return mul_backward(c, with_fp32(c)); }

SddmmArgs sddmm_args(const Context& c, Op op, int64_t len, const BroadcastPlan& plan) {
  SddmmArgs args;
  args.topology = c.graph.csc;
  args.op = op;
  args.lhs = operand(c, c.memory.values(c.shape.type, kNodes * len), len, Target::kCol);
  args.rhs = operand(c, c.memory.values(c.shape.type, kNodes * len), len, Target::kRow);
  args.broadcast = plan.view();
  args.out_len = plan.out_len;
  args.out = c.new_edges();
  args.out_type = c.shape.type;
  return args;
}
Call u_dot_v(const Context& c) {
  const Shape shape{c.shape.heads, c.shape.dim};
  const auto plan = std::make_shared<BroadcastPlan>(shape, shape, Op::kDot);
  const SddmmArgs args = sddmm_args(c, Op::kDot, c.shape.len(), *plan);
  return [=] { c.kernels.sddmm.dot(args, 0, plan ? kNodes : 0); };
}
// Rows of sources in fp32.
Call u_dot_v_of_fp32(const Context& c) {
  const Shape shape{c.shape.heads, c.shape.dim};
  const auto plan = std::make_shared<BroadcastPlan>(shape, shape, Op::kDot);
  SddmmArgs args = sddmm_args(c, Op::kDot, c.shape.len(), *plan);
  args.lhs = operand(with_fp32(c), with_fp32(c).nodes(), c.shape.len(), Target::kCol);
  return [=] { c.kernels.sddmm.dot(args, 0, plan ? kNodes : 0); };
}
// A value a head: what attention adds up.
Call u_add_v(const Context& c) {
  const Shape shape{c.shape.heads, 1};
  const auto plan = std::make_shared<BroadcastPlan>(shape, shape, Op::kAdd);
  const SddmmArgs args = sddmm_args(c, Op::kAdd, c.shape.heads, *plan);
  return [=] { c.kernels.sddmm.elementwise(args, 0, plan ? kNodes : 0); };
}

Call softmax_forward(const Context& c, int64_t columns) {
  EdgeSoftmaxArgs args;
  args.topology = c.graph.csc;
  args.logits = c.memory.values(c.shape.type, c.graph.num_edges * columns);
  args.out = c.memory.empty(c.shape.type, c.graph.num_edges * columns);
  args.type = c.shape.type;
  args.columns = columns;
  return [=] { c.kernels.edge_softmax.forward(args, 0, kNodes); };
}
Call softmax_backward(const Context& c, int64_t columns) {
  EdgeSoftmaxArgs args;
  args.topology = c.graph.csc;
  args.logits = c.memory.magnitudes(c.shape.type, c.graph.num_edges * columns);  // weights
  args.grad = c.memory.values(c.shape.type, c.graph.num_edges * columns);
  args.out = c.memory.empty(c.shape.type, c.graph.num_edges * columns);
  args.type = c.shape.type;
  args.columns = columns;
  return [=] { c.kernels.edge_softmax.backward(args, 0, kNodes); };
}
Call edge_softmax(const Context& c) { return softmax_forward(c, c.shape.heads); }
Call edge_softmax_backward(const Context& c) { return softmax_backward(c, c.shape.heads); }
Call edge_softmax_of_rows(const Context& c) { return softmax_forward(c, c.shape.len()); }
Call edge_softmax_of_rows_backward(const Context& c) { return softmax_backward(c, c.shape.len()); }

GatArgs gat_args(const Context& c) {
  GatArgs args;
  args.topology = c.graph.csc;
  args.num_cols = kNodes;
  args.heads = c.shape.heads;
  args.dim = c.shape.dim;
  args.type = args.logit_type = c.shape.type;
  args.feat = c.nodes();
  args.attn_src = c.per_head();
  args.attn_dst = c.per_head();
  args.out = c.precise();
  args.lse = c.accumulators(kNodes * c.shape.heads);
  args.positive = c.new_nodes();
  return args;
}
Call gat_forward(const Context& c, const GatArgs& args) {
  void* widened = c.accumulators(kNodes * c.shape.heads);
  return [=] {
    GatPass pass{args};
    c.kernels.gat.widen(args.logit_type, args.attn_src, widened, 0, kNodes * args.heads);
    pass.attn_src = widened;
    c.kernels.gat.forward(pass, 0, kNodes);
  };
}
Call gat_attention(const Context& c) { return gat_forward(c, gat_args(c)); }
Call gat_backward(const Context& c, GatArgs args) {
  gat_forward(c, args)();
  args.topology = c.graph.csr;
  args.grad = c.nodes();
  args.grad_feat = c.new_nodes();
  args.grad_attn_src = c.per_head();
  args.grad_attn_dst = c.per_head();
  void* records = c.accumulators(kNodes * kGatRecord * c.shape.heads);
  return [=] {
    GatPass pass{args};
    pass.records = records;
    c.kernels.gat.nodes(pass, 0, kNodes);
    c.kernels.gat.backward(pass, 0, kNodes);
  };
}
Call gat_attention_backward(const Context& c) { return gat_backward(c, gat_args(c)); }
Call gat_edge_logits_backward(const Context& c) {
  GatArgs args = gat_args(c);
  args.edge_logits = c.edges();
  args.grad_edge_logits = c.new_edges();
  return gat_backward(c, args);
}

PairAttentionArgs pair_args(const Context& c) {
  PairAttentionArgs args;
  args.topology = c.graph.csc;
  args.by_src = c.graph.csr;
  args.heads = c.shape.heads;
  args.dim = c.shape.dim;
  args.type = c.shape.type;
  args.query = c.nodes();
  args.key = args.value = c.nodes();
  args.out = c.precise();
  args.lse = c.accumulators(kNodes * c.shape.heads);
  return args;
}
PairAttentionArgs gatv2_args(const Context& c) {
  PairAttentionArgs args = pair_args(c);
  args.score = PairScore::kLeaky;
  args.attn = c.memory.values(c.shape.type, c.shape.len());
  args.factor = 0.2;
  return args;
}
PairAttentionArgs dot_args(const Context& c) {
  PairAttentionArgs args = pair_args(c);
  args.value = c.nodes();
  args.factor = 0.125;
  return args;
}
Call pair_forward(const Context& c, const PairAttentionArgs& args) {
  return [=] { c.kernels.pair.forward({args}, 0, kNodes); };
}
Call gatv2_attention(const Context& c) { return pair_forward(c, gatv2_args(c)); }
Call dot_attention(const Context& c) { return pair_forward(c, dot_args(c)); }
Call dot_attention_dropout(const Context& c) {
  static constexpr int64_t kSeed[2] = {20, 0};
  PairAttentionArgs args = dot_args(c);
  args.dropout = {kSeed, 1u << 31, 2.};
  return pair_forward(c, args);
}
// One pass over destinations and one over sources.
Call pair_backward(const Context& c, PairAttentionArgs args, void* edge_records = nullptr,
                   void* partial_weight = nullptr) {
  pair_forward(c, args)();
  args.grad = c.nodes();
  void* records = c.accumulators(kNodes * kPairRecord * c.shape.heads);
  args.grad_query = c.new_nodes();
  void* partial_attn = c.accumulators(c.shape.len());
  args.grad_key = c.new_nodes();
  args.grad_value = c.new_nodes();
  return [=] {
    c.kernels.pair.nodes({args.heads, args.dim, args.type, args.out, args.grad, args.lse, records}, 0, kNodes);
    for (const bool by_src : {false, true})
      c.kernels.pair.backward({args, by_src, records, partial_attn, partial_weight, edge_records}, 0, kNodes);
  };
}
Call gatv2_attention_backward(const Context& c) { return pair_backward(c, gatv2_args(c)); }
Call dot_attention_backward(const Context& c) { return pair_backward(c, dot_args(c)); }
// A bias, and features of 16 columns, projected to keys and to values.
constexpr int64_t kColumns = 16;
PairAttentionArgs dot_edges_args(const Context& c) {
  PairAttentionArgs args = dot_args(c);
  args.edge.bias = c.edges();
  args.edge.bias_type = c.shape.type;
  args.edge.feat_dim = kColumns;
  args.edge.feat = c.memory.values(c.shape.type, c.graph.num_edges * kColumns);
  args.edge.key_weight = c.memory.values(c.shape.type, c.shape.len() * kColumns, -4);
  args.edge.value_weight = c.memory.values(c.shape.type, c.shape.len() * kColumns, -4);
  return args;
}
Call dot_attention_edges(const Context& c) { return pair_forward(c, dot_edges_args(c)); }
Call dot_attention_edges_backward(const Context& c) {
  PairAttentionArgs args = dot_edges_args(c);
  args.edge.grad_query = c.accumulators(kNodes * c.shape.heads * kColumns);
  args.edge.grad_bias = c.new_edges();
  args.edge.grad_feat = c.memory.empty(c.shape.type, c.graph.num_edges * kColumns);
  return pair_backward(c, args, c.accumulators(2 * c.graph.num_edges * c.shape.heads));
}
// Features of 16 columns, projected to rows inside the LeakyReLU.
PairAttentionArgs gatv2_edges_args(const Context& c) {
  PairAttentionArgs args = gatv2_args(c);
  args.edge.feat_dim = kColumns;
  args.edge.feat = c.memory.values(c.shape.type, c.graph.num_edges * kColumns);
  args.edge.weight = c.memory.values(c.shape.type, c.shape.len() * kColumns, -4);  // logits like those without edges
  return args;
}
Call gatv2_attention_edges(const Context& c) { return pair_forward(c, gatv2_edges_args(c)); }
Call gatv2_attention_edges_backward(const Context& c) {
  PairAttentionArgs args = gatv2_edges_args(c);
  args.edge.grad_feat = c.memory.empty(c.shape.type, c.graph.num_edges * kColumns);
  void* partial_weight = c.accumulators(c.shape.len() * kColumns);
  return pair_backward(c, args, c.memory.bytes(c.graph.num_edges * edge_record_len(args) * 4), partial_weight);
}
Call dot_attention_edge_rows_backward(const Context& c) {
  PairAttentionArgs args = dot_args(c);
  args.edge.key = args.edge.value = c.memory.values(c.shape.type, c.graph.num_edges * c.shape.len());
  args.edge.grad_key = c.memory.empty(c.shape.type, c.graph.num_edges * c.shape.len());
  return pair_backward(c, args, c.accumulators(2 * c.graph.num_edges * c.shape.heads));
}

// ---- rows of codes, for each edge that of its source

Call dequantize(const Context& c, Code code, ScalePer per) {
  const int64_t rows = kNodes, len = c.shape.len();
  auto* codes = static_cast<uint8_t*>(c.memory.bytes(rows * len));
  for (int64_t i = 0; i < rows * len; ++i) codes[i] = static_cast<uint8_t>(c.memory.random.next() % 120);  // no nan
  const int64_t scales = per == ScalePer::kColumn ? len + kMostLanes : rows;
  GatherRowsArgs args;
  args.table = codes;
  args.table_rows = rows;
  args.table_stride = args.row_bytes = len;
  args.ids = c.graph.csc.indices;
  args.num_ids = c.graph.num_edges;
  args.is_int64 = c.graph.csc.is_int64;
  args.code = code;
  args.scales.per = per;
  args.scales.scale = static_cast<const float*>(c.memory.values(DType::kFloat, scales));
  args.scales.zero_point = static_cast<const float*>(c.memory.values(DType::kFloat, scales));
  args.out = c.new_edge_rows();
  args.out_type = c.shape.type;
  return [=] { c.kernels.gather.dequantize(args, 0, args.num_ids); };
}
Call dequantize_uint8(const Context& c) { return dequantize(c, Code::kUInt8, ScalePer::kRow); }
Call dequantize_int8_by_column(const Context& c) { return dequantize(c, Code::kInt8, ScalePer::kColumn); }
Call dequantize_e4m3(const Context& c) { return dequantize(c, Code::kFloat8E4M3, ScalePer::kRow); }
Call dequantize_e5m2(const Context& c) { return dequantize(c, Code::kFloat8E5M2, ScalePer::kRow); }

bool takes_all(const KernelTable&, const Size&) { return true; }
bool takes_sum(const KernelTable& kernels, const Size& shape) {
  return kernels.has_sum_kernel(shape.type, shape.heads, shape.dim);
}
bool takes_vector(const KernelTable& kernels, const Size& shape) {
  return kernels.has_vector_kernel(shape.type, shape.dim);
}

bool takes_mixed(const KernelTable& kernels, const Size& shape) {
  return shape.type != DType::kFloat && takes_vector(kernels, shape);
}

bool takes_reduce(const KernelTable& kernels, const Size& shape) {
  return kernels.has_reduce_kernel(shape.type, shape.len(), 1);
}

bool takes_coo(const KernelTable&, const Size& shape) { return shape.type == DType::kFloat; }

bool takes_codes(const KernelTable&, const Size& shape) { return shape.type != DType::kDouble; }

struct Operator {
  const char* name;
  Prepare prepare;
  bool has_heads = true;
  bool (*takes)(const KernelTable&, const Size&) = takes_all;  // shapes
};
constexpr Operator kOperators[] = {
    {"copy_u_sum", copy_u_sum, false, takes_sum},
    {"copy_u_max", copy_u_max, false, takes_reduce},
    {"copy_u_max backward to winners", copy_u_max_backward, false, takes_reduce},
    {"copy_u_max by the general kernel", copy_u_max_general, false},
    {"copy_e_max backward", copy_e_max_backward, false, takes_reduce},
    {"coo_sum", coo_copies, false, takes_coo},
    {"coo_sum of weighted rows", coo_weighted, false, takes_coo},
    {"coo_sum of rows of edges", coo_edge_rows, false, takes_coo},
    {"coo_sum of u_relu_add_e", coo_relu_add, false, takes_coo},
    {"copy_u_reduce", copy_u_reduce, false, takes_reduce},
    {"copy_u_reduce backward", copy_u_reduce_backward, false, takes_reduce},
    {"u_mul_e_sum", u_mul_e_sum, true, takes_sum},
    {"u_mul_e_sum backward", u_mul_e_sum_backward, true, takes_vector},
    {"u_mul_e_sum of fp32 rows", u_mul_e_sum_of_fp32, true, takes_mixed},
    {"u_mul_e_sum of fp32 rows backward", u_mul_e_sum_of_fp32_backward, true, takes_mixed},
    {"u_mul_e_sum by the general kernel", u_mul_e_sum_general},
    {"u_mul_e_sum of rows", mul_rows, false, takes_vector},
    {"u_mul_e_sum of rows backward", mul_rows_backward, false, takes_vector},
    {"u_sub_e_sum of rows", sub_rows, false, takes_vector},
    {"u_sub_e_sum of rows backward", sub_rows_backward, false, takes_vector},
    {"u_relu_add_e_sum of rows", relu_add_rows, false, takes_vector},
    {"u_relu_add_e_sum of rows backward", relu_add_rows_backward, false, takes_vector},
    {"u_relu_add_e_sum of rows to fp32 rows", relu_add_rows_to_fp32, false, takes_mixed},
    {"u_relu_add_e_sum of rows to fp32 rows backward", relu_add_rows_to_fp32_backward, false, takes_mixed},
    {"u_add_v_add_e", u_add_v_add_e, false},
    {"gated_sum", gated_sum, false},
    {"gated_sum backward", gated_sum_backward, false},
    {"gated_sum of values of edges", gated_sum_values, false},
    {"gated_sum of values of edges backward", gated_sum_values_backward, false},
    {"u_dot_v", u_dot_v, true, takes_vector},
    {"u_dot_v of fp32 and half rows", u_dot_v_of_fp32, true, takes_mixed},
    {"u_add_v", u_add_v},
    {"edge_softmax", edge_softmax},
    {"edge_softmax backward", edge_softmax_backward},
    {"edge_softmax of rows", edge_softmax_of_rows, false},
    {"edge_softmax of rows backward", edge_softmax_of_rows_backward, false},
    {"gat_attention", gat_attention},
    {"gat_attention backward", gat_attention_backward},
    {"gat_attention backward of edge logits", gat_edge_logits_backward},
    {"gatv2_attention", gatv2_attention},
    {"gatv2_attention backward", gatv2_attention_backward},
    {"gatv2_attention edges", gatv2_attention_edges},
    {"gatv2_attention edges backward", gatv2_attention_edges_backward},
    {"dot_attention", dot_attention},
    {"dot_attention dropout", dot_attention_dropout},
    {"dot_attention backward", dot_attention_backward},
    {"dot_attention edges", dot_attention_edges},
    {"dot_attention edges backward", dot_attention_edges_backward},
    {"dot_attention edge rows backward", dot_attention_edge_rows_backward},
    {"rows of uint8", dequantize_uint8, false, takes_codes},
    {"rows of int8 scaled by column", dequantize_int8_by_column, false, takes_codes},
    {"rows of float8_e4m3fn", dequantize_e4m3, false, takes_codes},
    {"rows of float8_e5m2", dequantize_e5m2, false, takes_codes},
};

}  // namespace
}  // namespace halfgnn
