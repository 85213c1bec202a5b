// edge_softmax and its backward: checks, allocation.

#include "../torch/device.h"
#include "checks.h"
#include "register.h"
#include "results.h"

namespace halfgnn {
namespace {

// grad is undefined in the forward.
Tensor run(const Tensor& indptr, const OptionalTensor& edge_ids, const Tensor& values, const OptionalTensor& grad_out,
           bool short_rows) {
  const DeviceGuard guard(indptr.device());
  const Backend& backend = backend_of(indptr.device());
  const Feature logits = feature_of(values, grad_out ? "out" : "logits", Target::kEdge, indptr.device());
  const Topology topology = topology_of(indptr, std::nullopt, edge_ids, logits.tensor.size(0), short_rows);
  const Feature grad = feature_of(grad_out, "grad", Target::kEdge, indptr.device());
  if (grad.defined()) {
    CHECK_VALUE(grad.tensor.sizes() == logits.tensor.sizes(), "grad has shape ", grad.tensor.sizes(), "; expected ",
                logits.tensor.sizes());
    CHECK_TYPE(grad.operand.type == logits.operand.type, "grad has dtype ", dtype_name(grad.tensor.scalar_type()),
               "; expected ", dtype_name(logits.tensor.scalar_type()));
  }
  Tensor out = new_result(logits.tensor.sizes(), logits.tensor.options());
  if (out.numel() == 0) return out;
  EdgeSoftmaxArgs args;
  args.topology = topology;
  args.logits = logits.operand.data;
  args.grad = grad.operand.data;
  args.out = out.mutable_data_ptr();
  args.type = logits.operand.type;
  args.columns = logits.operand.len;
  const auto kernel = grad.defined() ? backend.edge_softmax_backward : backend.edge_softmax;
  kernel(args);
  return out;
}

Tensor edge_softmax(const Tensor& indptr, const OptionalTensor& edge_ids, const Tensor& logits, bool short_rows) {
  return run(indptr, edge_ids, logits, std::nullopt, short_rows);
}
Tensor edge_softmax_backward(const Tensor& indptr, const OptionalTensor& edge_ids, const Tensor& out,
                             const Tensor& grad, bool short_rows) {
  return run(indptr, edge_ids, out, grad, short_rows);
}

}  // namespace

void register_edge_softmax(Library& m) {
  m.impl<&edge_softmax>("edge_softmax");
  m.impl<&edge_softmax_backward>("edge_softmax_backward");
}

}  // namespace halfgnn
