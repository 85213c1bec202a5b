// segment_reduce and its backward: gspmm of edge data over an adjacency that has no columns.

#include "../torch/device.h"
#include "register.h"
#include "results.h"
#include "spmm.h"

namespace halfgnn {
namespace {

std::tuple<Tensor, Tensor> segment_reduce(const Tensor& offsets, const Tensor& value_data, string_view reduce_name) {
  const DeviceGuard guard(offsets.device());
  const Backend& backend = backend_of(offsets.device());
  const Reduce reduce = parse_reduce(reduce_name);
  const Feature value = feature_of(value_data, "value", Target::kEdge, offsets.device());
  const Topology topology = topology_of(offsets, std::nullopt, std::nullopt, value.tensor.size(0));
  backend.check_offsets(topology);
  const BroadcastPlan plan = plan_of(Op::kCopyRhs, {}, trailing(value.tensor.sizes()));
  Tensor out = new_result(with_rows(topology.num_rows, plan.out_shape), value.tensor.options());
  const bool has_arg = is_argument_reduce(reduce);
  Tensor arg = has_arg ? new_result(out.sizes(), offsets.options()) : empty({0}, offsets.options());
  if (!has_arg && backend.has_sum_kernel(value.operand.type, 1, plan.out_len)) {
    SpmmSumArgs args;
    args.topology = topology;
    args.feat = value.operand.data;
    args.feat_rows = value.operand.rows;
    args.feat_by_edge = true;
    args.type = args.weight_type = args.out_type = value.operand.type;
    args.dim = plan.out_len;
    args.divide_by_degree = reduce == Reduce::kMean;
    args.out = out.mutable_data_ptr();
    backend.spmm_sum(args);
  } else if (!copy_extremum(backend, topology, reduce, value.operand, out, arg)) {
    SpmmArgs args;
    args.topology = topology;
    args.op = Op::kCopyRhs;
    args.reduce = reduce;
    args.rhs = value.operand;
    args.broadcast = plan.view();
    args.out_len = plan.out_len;
    args.out = out.mutable_data_ptr();
    args.arg = has_arg ? arg.mutable_data_ptr() : nullptr;
    args.out_type = value.operand.type;
    backend.spmm(args);
  }
  return {out, arg};
}

Tensor segment_reduce_backward(const Tensor& offsets, const Tensor& grad_out, const OptionalTensor& arg_data,
                               string_view reduce_name, int64_t num_rows) {
  const DeviceGuard guard(offsets.device());
  const Backend& backend = backend_of(offsets.device());
  const Reduce reduce = parse_reduce(reduce_name);
  CHECK_VALUE(!is_argument_reduce(reduce) || arg_data, "arg is None; ", reduce_name, " needs it");
  const Feature grad = feature_of(grad_out, "grad", Target::kRow, offsets.device());
  const Topology topology = topology_of(offsets, std::nullopt, std::nullopt, num_rows);
  check_row_rows(grad, "grad", topology.num_rows);
  backend.check_offsets(topology);
  const BroadcastPlan plan = plan_of(Op::kCopyRhs, {}, trailing(grad.tensor.sizes()));
  Tensor out = zeros(with_rows(num_rows, plan.out_shape), grad.tensor.options());
  if (out.numel() == 0) return out;
  if (is_argument_reduce(reduce)) check_arg(*arg_data, grad_out, offsets);
  const Tensor arg = is_argument_reduce(reduce) ? as_type(arg_data->contiguous(), offsets.scalar_type()) : Tensor();
  BackwardArgs args;
  args.topology = topology;
  args.op = Op::kCopyRhs;
  args.grad = grad.operand;
  args.rhs.len = plan.rhs_len;
  args.lhs.len = 0;
  args.broadcast = plan.view();
  args.message_len = plan.out_len;
  args.mean_indptr = mean_indptr_of(reduce, offsets, offsets);
  args.arg = arg.defined() ? arg.const_data_ptr() : nullptr;
  args.grad_rhs = {out.mutable_data_ptr(), grad.operand.type, true};
  backend.backward(args);
  return out;
}

}  // namespace

void register_segment_reduce(Library& m) {
  m.impl<&segment_reduce>("segment_reduce");
  m.impl<&segment_reduce_backward>("segment_reduce_backward");
}

}  // namespace halfgnn
