// coo_sum: sums and means of rows over an edge list as it is. Its ids are checked in every call. For the CPU only.

#ifdef HALFGNN_CPU_KEY

#include "../cpu/coo_sum.h"

#include "checks.h"
#include "register.h"

namespace halfgnn {
namespace {

// Rows (N, *) in the type in which they are added.
struct Rows {
  Tensor tensor;
  int64_t dim = 1;

  Rows(const Tensor& given, const char* name) {
    CHECK_VALUE(given.dim() >= 1, name, " has no dimensions; expected one row per node");
    CHECK_VALUE(given.device().is_cpu(), name, " is on ", given.device(), "; expected the device of row, cpu");
    const bool is_half = size_of(dtype_of(given.scalar_type(), name)) == 2;
    tensor = (is_half ? given.to(ScalarType::Float) : given).contiguous();
    for (int64_t d = 1; d < given.dim(); ++d) dim *= given.size(d);
  }
  bool is_double() const { return tensor.scalar_type() == ScalarType::Double; }
  const void* data() const { return tensor.const_data_ptr(); }
};

class CheckedEdges {
 public:
  CheckedEdges(const Tensor& row, const Tensor& col, int64_t num_rows, int64_t num_cols) {
    check_coo(row, col);
    row_ = row.contiguous();
    col_ = col.contiguous();
    edges_ = {row_.const_data_ptr(), col_.const_data_ptr(), row.size(0), row.scalar_type() == ScalarType::Long};
    cpu::check_ids(edges_.row, edges_.is_int64, edges_.num_edges, "row", num_rows);
    cpu::check_ids(edges_.col, edges_.is_int64, edges_.num_edges, "col", num_cols);
  }
  const EdgeList& by_row() const { return edges_; }
  EdgeList by_col() const { return {edges_.col, edges_.row, edges_.num_edges, edges_.is_int64}; }

 private:
  Tensor row_, col_;
  EdgeList edges_;
};

bool is_mean(string_view reduce) {
  CHECK_VALUE(reduce == "sum" || reduce == "mean", "reduce is '", reduce, "'; expected 'sum' or 'mean'");
  return reduce == "mean";
}

Tensor weights_of(const Tensor& weight, const Tensor& feat, int64_t num_edges) {
  CHECK_TYPE(weight.scalar_type() == feat.scalar_type(), "weight has dtype ", dtype_name(weight.scalar_type()),
             "; expected that of feat, ", dtype_name(feat.scalar_type()));
  CHECK_VALUE(weight.dim() == 1 && weight.size(0) == num_edges, "weight has shape ", weight.sizes(), "; expected (",
              num_edges, ",), one number per edge");
  return Rows(weight, "weight").tensor;
}

Tensor divided(const EdgeList& edges, const Tensor& rows, int64_t dim) {
  Tensor counts = empty({rows.size(0)}, rows.options().dtype(ScalarType::Long));
  cpu::count_edges(edges, rows.size(0), counts.mutable_data_ptr<int64_t>());
  Tensor out = empty_like(rows);
  cpu::divide_rows({rows.const_data_ptr(), counts.const_data_ptr<int64_t>(), rows.size(0), dim,
                    rows.scalar_type() == ScalarType::Double, out.mutable_data_ptr()});
  return out;
}

Tensor summed(const EdgeList& edges, const Rows& feat, const Tensor& weight, int64_t num_rows) {
  Tensor out = zeros(with_rows(num_rows, trailing(feat.tensor.sizes())), feat.tensor.options());
  if (out.numel() == 0) return out;
  cpu::coo_sum({edges, feat.data(), weight.defined() ? weight.const_data_ptr() : nullptr, feat.dim, feat.is_double(),
                out.mutable_data_ptr()});
  return out;
}

Tensor coo_sum(const Tensor& row, const Tensor& col, const Tensor& feat, const OptionalTensor& weight,
               string_view reduce, int64_t num_rows) {
  check_count(num_rows, "num_rows");
  const Rows rows(feat, "feat");
  const CheckedEdges edges(row, col, num_rows, feat.size(0));
  const Tensor weights = weight ? weights_of(*weight, feat, row.size(0)) : Tensor();
  Tensor out = summed(edges.by_row(), rows, weights, num_rows);
  if (is_mean(reduce)) out = divided(edges.by_row(), out, rows.dim);
  return out.to(feat.scalar_type());
}

std::tuple<Tensor, Tensor> coo_sum_backward(const Tensor& row, const Tensor& col, const Tensor& grad,
                                            const OptionalTensor& feat, const OptionalTensor& weight,
                                            string_view reduce, int64_t num_cols, bool need_feat, bool need_weight) {
  check_count(num_cols, "num_cols");
  Rows grads(grad, "grad");
  const CheckedEdges edges(row, col, grad.size(0), num_cols);
  const Tensor weights = weight ? weights_of(*weight, grad, row.size(0)) : Tensor();
  if (is_mean(reduce)) grads.tensor = divided(edges.by_row(), grads.tensor, grads.dim);
  Tensor grad_feat = empty({0}, grad.options()), grad_weight = empty({0}, grad.options());
  if (need_feat) grad_feat = summed(edges.by_col(), grads, weights, num_cols).to(grad.scalar_type());
  if (!need_weight) return {grad_feat, grad_weight};
  CHECK_VALUE(feat, "feat is None; the gradient of weight reads it");
  const Rows rows(*feat, "feat");
  CHECK_TYPE(feat->scalar_type() == grad.scalar_type(), "feat has dtype ", dtype_name(feat->scalar_type()),
             "; expected that of grad, ", dtype_name(grad.scalar_type()));
  CHECK_VALUE(feat->size(0) == num_cols && rows.dim == grads.dim, "feat has shape ", feat->sizes(), "; expected ",
              num_cols, " rows of the shape of those of grad, ", grad.sizes());
  Tensor products = empty({row.size(0)}, rows.tensor.options());
  cpu::coo_dot({edges.by_row(), grads.data(), rows.data(), rows.dim, rows.is_double(), products.mutable_data_ptr()});
  return {grad_feat, products.to(grad.scalar_type())};
}

}  // namespace

void register_coo_sum(Library& m) {
  m.impl<&coo_sum>("coo_sum");
  m.impl<&coo_sum_backward>("coo_sum_backward");
}

}  // namespace halfgnn

#endif
