// coo_softmax and its backward: softmax over an edge list as it is. Its ids are checked in every call. For the CPU
// only.

#ifdef HALFGNN_CPU_KEY

#include "../cpu/coo.h"

#include "coo_rows.h"
#include "register.h"

namespace halfgnn {
namespace {

// The tensors that the arguments point to.
struct Call {
  Tensor row, of_rows, out;
  CooSoftmaxArgs args;

  Call(const Tensor& given, const CooRows& values, int64_t num_rows) : row(given.contiguous()) {
    const Tensor& edges = values.tensor;
    check_coo(given, given);
    check_count(num_rows, "num_rows");
    CHECK_VALUE(given.size(0) == edges.size(0), "row has shape ", given.sizes(), "; expected (", edges.size(0),
                ",), one id per row of logits");
    args.row = row.const_data_ptr();
    args.num_edges = row.size(0);
    args.is_int64 = row.scalar_type() == ScalarType::Long;
    cpu::check_ids(args.row, args.is_int64, args.num_edges, "row", num_rows);
    of_rows = empty({2, num_rows, values.dim}, edges.options());
    out = empty_like(edges);
    args.num_rows = num_rows;
    args.dim = values.dim;
    args.is_double = values.is_double();
    args.of_rows = of_rows.mutable_data_ptr();
    args.out = out.mutable_data_ptr();
  }
};

Tensor coo_softmax(const Tensor& row, const Tensor& logits, int64_t num_rows) {
  const CooRows values(logits, "logits");
  Call call(row, values, num_rows);
  call.args.logits = values.data();
  if (call.out.numel() > 0) cpu::coo_softmax(call.args);
  return call.out.to(logits.scalar_type());
}

Tensor coo_softmax_backward(const Tensor& row, const Tensor& out, const Tensor& grad, int64_t num_rows) {
  CHECK_VALUE(grad.sizes() == out.sizes(), "grad has shape ", grad.sizes(), "; expected ", out.sizes());
  CHECK_TYPE(grad.scalar_type() == out.scalar_type(), "grad has dtype ", dtype_name(grad.scalar_type()), "; expected ",
             dtype_name(out.scalar_type()));
  const CooRows weights(out, "out"), grads(grad, "grad");
  Call call(row, weights, num_rows);
  if (call.out.numel() > 0) cpu::coo_softmax_backward({call.args, weights.data(), grads.data()});
  return call.out.to(out.scalar_type());
}

}  // namespace

void register_coo_softmax(Library& m) {
  m.impl<&coo_softmax>("coo_softmax");
  m.impl<&coo_softmax_backward>("coo_softmax_backward");
}

}  // namespace halfgnn

#endif
