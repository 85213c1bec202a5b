// coo_sum: sums and means of rows over an edge list as it is. Its ids are checked in every call. For the CPU only.

#ifdef HALFGNN_CPU_KEY

#include "../cpu/coo.h"

#include "coo_rows.h"
#include "register.h"
#include "results.h"

namespace halfgnn {
namespace {

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

// What is combined with the rows of sources. op and rhs: as in gspmm.
struct Edges {
  Tensor weight, addend;

  // feat: rows like those of sources, called so. is_read: whether rhs is needed.
  Edges(string_view op, const OptionalTensor& rhs, const Tensor& feat, const char* name, int64_t num_edges,
        bool is_read = true) {
    CHECK_VALUE(op == "copy_lhs" || op == "mul" || op == "relu_add", "op is '", op,
                "'; expected 'copy_lhs', 'mul' or 'relu_add'");
    if (op == "copy_lhs") {
      CHECK_VALUE(!rhs, "rhs is given; expected None for op 'copy_lhs'");
      return;
    }
    if (!is_read) return;
    CHECK_VALUE(rhs, "rhs is None; expected values of edges for op '", op, "'");
    CHECK_TYPE(rhs->scalar_type() == feat.scalar_type(), "rhs has dtype ", dtype_name(rhs->scalar_type()),
               "; expected that of ", name, ", ", dtype_name(feat.scalar_type()));
    const std::vector<int64_t> per_edge = with_rows(num_edges, trailing(feat.sizes()));
    if (op == "mul") {
      CHECK_VALUE(rhs->dim() == 1 && rhs->size(0) == num_edges, "rhs has shape ", rhs->sizes(), "; expected (",
                  num_edges, ",), one number per edge");
      weight = CooRows(*rhs, "rhs").tensor;
    } else {
      CHECK_VALUE(rhs->sizes() == IntArrayRef(per_edge), "rhs has shape ", rhs->sizes(), "; expected ",
                  IntArrayRef(per_edge), ", a row per edge");
      addend = CooRows(*rhs, "rhs").tensor;
    }
  }
};

Tensor divided(const EdgeList& edges, const Tensor& rows, int64_t dim) {
  Tensor counts = empty({rows.size(0)}, rows.options().dtype(ScalarType::Long));
  cpu::count_edges(edges, rows.size(0), counts.mutable_data_ptr<int64_t>());
  Tensor out = empty_like(rows);
  cpu::divide_rows({rows.const_data_ptr(), counts.const_data_ptr<int64_t>(), rows.size(0), dim,
                    rows.scalar_type() == ScalarType::Double, out.mutable_data_ptr()});
  return out;
}

Tensor summed(const EdgeList& edges, const CooRows& feat, const Edges& of_edges, int64_t num_rows) {
  Tensor out = zeros(with_rows(num_rows, trailing(feat.tensor.sizes())), feat.tensor.options());
  if (out.numel() == 0) return out;
  cpu::coo_sum({edges, feat.data(), data_or_null(of_edges.weight), data_or_null(of_edges.addend), feat.dim,
                feat.is_double(), out.mutable_data_ptr()});
  return out;
}

Tensor coo_sum(const Tensor& row, const Tensor& col, const Tensor& feat, const OptionalTensor& rhs, string_view op,
               string_view reduce, int64_t num_rows) {
  check_count(num_rows, "num_rows");
  const CooRows rows(feat, "feat");
  const CheckedEdges edges(row, col, num_rows, feat.size(0));
  const Edges of_edges(op, rhs, feat, "feat", row.size(0));
  Tensor out = summed(edges.by_row(), rows, of_edges, num_rows);
  if (is_mean(reduce)) out = divided(edges.by_row(), out, rows.dim);
  return out.to(feat.scalar_type());
}

Tensor products(const EdgeList& edges, const CooRows& lhs, const CooRows& rhs) {
  Tensor out = empty({edges.num_edges}, lhs.tensor.options());
  cpu::coo_dot({edges, lhs.data(), rhs.data(), lhs.dim, lhs.is_double(), out.mutable_data_ptr()});
  return out;
}

std::tuple<Tensor, Tensor> coo_sum_backward(const Tensor& row, const Tensor& col, const Tensor& grad,
                                            const OptionalTensor& feat, const OptionalTensor& rhs, string_view op,
                                            string_view reduce, int64_t num_cols, bool need_feat, bool need_rhs) {
  check_count(num_cols, "num_cols");
  CooRows grads(grad, "grad");
  const CheckedEdges edges(row, col, grad.size(0), num_cols);
  const bool is_relu = op == "relu_add", reads_feat = need_rhs || is_relu;
  const Edges of_edges(op, rhs, grad, "grad", row.size(0), need_feat || is_relu);  // a weight is read for feat alone
  if (is_mean(reduce)) grads.tensor = divided(edges.by_row(), grads.tensor, grads.dim);
  Tensor grad_feat = empty({0}, grad.options()), grad_rhs = empty({0}, grad.options());
  if (need_feat && !is_relu) grad_feat = summed(edges.by_col(), grads, of_edges, num_cols).to(grad.scalar_type());
  if (!reads_feat) return {grad_feat, grad_rhs};

  CHECK_VALUE(feat, "feat is None; the gradient of ", is_relu ? "relu_add" : "rhs", " reads it");
  const CooRows rows(*feat, "feat");
  CHECK_TYPE(feat->scalar_type() == grad.scalar_type(), "feat has dtype ", dtype_name(feat->scalar_type()),
             "; expected that of grad, ", dtype_name(grad.scalar_type()));
  CHECK_VALUE(feat->size(0) == num_cols && rows.dim == grads.dim, "feat has shape ", feat->sizes(), "; expected ",
              num_cols, " rows of the shape of those of grad, ", grad.sizes());
  if (!is_relu) return {grad_feat, products(edges.by_row(), grads, rows).to(grad.scalar_type())};

  const Tensor& addend = of_edges.addend;
  if (need_feat) grad_feat = zeros(rows.tensor.sizes(), rows.tensor.options());
  if (need_rhs) grad_rhs = empty(addend.sizes(), addend.options());
  cpu::coo_relu_backward({edges.by_row(), rows.data(), addend.const_data_ptr(), grads.data(), grads.dim,
                          rows.is_double(), need_feat ? grad_feat.mutable_data_ptr() : nullptr,
                          need_rhs ? grad_rhs.mutable_data_ptr() : nullptr});
  return {grad_feat.to(grad.scalar_type()), grad_rhs.to(grad.scalar_type())};
}

}  // namespace

void register_coo_sum(Library& m) {
  m.impl<&coo_sum>("coo_sum");
  m.impl<&coo_sum_backward>("coo_sum_backward");
}

}  // namespace halfgnn

#endif
