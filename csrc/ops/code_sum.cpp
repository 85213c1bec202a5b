// code_sum: sums and means of rows of codes of 8 bits, weighted or plain.

#include "../torch/device.h"
#include "code_checks.h"
#include "register.h"
#include "results.h"

namespace halfgnn {
namespace {

// One weight for each run of codes of a row: the weight's shape is that of a row, from some dimension on with ones.
void add_weight(const Tensor& weight, const Shape& columns, CodeSumArgs& args) {
  Shape own = trailing(weight.sizes());
  const bool has_room = own.size() <= columns.size();
  if (has_room) own.insert(own.begin(), columns.size() - own.size(), 1);
  size_t d = 0;
  for (; has_room && d < own.size() && own[d] == columns[d]; ++d) args.heads *= own[d];
  bool is_per_head = has_room;
  for (; has_room && d < own.size(); ++d) is_per_head &= own[d] == 1;
  CHECK_VALUE(is_per_head, "weight has shape ", weight.sizes(),
              "; expected one number per edge, or one per edge and head of codes, whose rows have shape ",
              IntArrayRef(columns));
  if (args.heads > 0) args.dim /= args.heads;
}

Tensor code_sum(const Tensor& indptr, const Tensor& indices, const OptionalTensor& edge_ids, string_view reduce_name,
                const Tensor& codes, const Tensor& scale, const OptionalTensor& zero_point,
                const OptionalTensor& weight, ScalarType out_dtype, bool short_rows) {
  const Device device = indptr.device();
  const DeviceGuard guard(device);
  const Backend& backend = backend_of(device);
  const Reduce reduce = parse_reduce(reduce_name);
  CHECK_VALUE(!is_argument_reduce(reduce), "reduce is '", reduce_name, "'; expected sum or mean for codes");
  CodeSumArgs args;
  args.topology = topology_of(indptr, indices, edge_ids, indices.numel(), short_rows);
  CHECK_VALUE(codes.dim() >= 1, "codes has no dimensions; expected one row per node");
  args.code = code_of(codes, "codes");
  const auto check_place = [&](const Tensor& tensor, const char* name) {
    CHECK_VALUE(tensor.device() == device, name, " is on ", tensor.device(), "; expected the graph's device, ", device);
  };
  check_place(codes, "codes");
  check_place(scale, "scale");
  if (zero_point) check_place(*zero_point, "zero_point");
  args.scales = scales_of(codes, "codes", scale, zero_point);
  args.out_type = dtype_of(out_dtype, "out");
  CHECK_TYPE(args.out_type != DType::kDouble,
             "out_dtype is torch.float64; expected torch.float16, torch.bfloat16 or torch.float32");
  const Shape columns = trailing(codes.sizes());
  args.dim = 1;
  for (const int64_t size : columns) args.dim *= size;
  const Feature edge = feature_of(weight, "weight", Target::kEdge, device);
  if (edge.defined()) {
    check_edge_rows(edge, "weight", args.topology.num_edges);
    CHECK_TYPE(edge.operand.type != DType::kDouble,
               "weight has dtype torch.float64; expected torch.float16, torch.bfloat16 or torch.float32");
    add_weight(edge.tensor, columns, args);
    args.weight = edge.operand.data;
    args.weight_type = edge.operand.type;
  }
  const Tensor rows = codes.contiguous();
  args.codes = rows.const_data_ptr();
  args.codes_rows = rows.size(0);
  args.divide_by_degree = reduce == Reduce::kMean;
  Tensor out = new_result(with_rows(args.topology.num_rows, columns), codes.options().dtype(out_dtype));
  args.out = out.mutable_data_ptr();
  if (args.heads * args.dim > 0) backend.code_sum(args);
  return out;
}

}  // namespace

void register_code_sum(Library& m) { m.impl<&code_sum>("code_sum"); }

}  // namespace halfgnn
