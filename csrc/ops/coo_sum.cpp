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
  // A side that is None is that of the edges themselves.
  CheckedEdges(const OptionalTensor& row, const OptionalTensor& col, int64_t num_rows, int64_t num_cols) {
    CHECK_VALUE(row || col, "row and col are None; expected the ids of one side at least");
    const Tensor &given = row ? *row : *col, &other = col ? *col : *row;
    check_coo(given, other);
    if (row) row_ = row->contiguous();
    if (col) col_ = col->contiguous();
    edges_ = {ids_of(row_), ids_of(col_), given.size(0), given.scalar_type() == ScalarType::Long};
    check_side(edges_.row, "row", num_rows);
    check_side(edges_.col, "col", num_cols);
  }
  const EdgeList& by_row() const { return edges_; }
  EdgeList by_col() const { return {edges_.col, edges_.row, edges_.num_edges, edges_.is_int64}; }
  // Of the edges themselves, each to its row.
  EdgeList by_edge() const { return {nullptr, edges_.row, edges_.num_edges, edges_.is_int64}; }

 private:
  // Not null without edges, unlike the memory of a tensor.
  static const void* ids_of(const Tensor& ids) {
    static constexpr int64_t kNone = 0;
    return ids.defined() && ids.numel() == 0 ? &kNone : data_or_null(ids);
  }
  void check_side(const void* ids, const char* name, int64_t count) const {
    CHECK_VALUE(ids != nullptr || count == edges_.num_edges, name, " is None, and its side has ", count,
                " rows; expected one per edge, ", edges_.num_edges);
    if (ids != nullptr) cpu::check_ids(ids, edges_.is_int64, edges_.num_edges, name, count);
  }
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
  bool has_relu = false;

  // feat: rows like those of sources, called so. is_read: whether rhs is needed.
  Edges(string_view op, const OptionalTensor& rhs, const Tensor& feat, const char* name, int64_t num_edges,
        bool is_read = true) {
    CHECK_VALUE(op == "copy_lhs" || op == "mul" || op == "add" || op == "relu_add", "op is '", op,
                "'; expected 'copy_lhs', 'mul', 'add' or 'relu_add'");
    if (op == "copy_lhs") {
      CHECK_VALUE(!rhs, "rhs is given; expected None for op 'copy_lhs'");
      return;
    }
    if (!is_read) return;
    has_relu = op == "relu_add";
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
  if (edges.row == nullptr) return rows;  // of one edge each
  Tensor counts = empty({rows.size(0)}, rows.options().dtype(ScalarType::Long));
  cpu::count_edges(edges, rows.size(0), counts.mutable_data_ptr<int64_t>());
  Tensor out = empty_like(rows);
  cpu::divide_rows({rows.const_data_ptr(), counts.const_data_ptr<int64_t>(), rows.size(0), dim,
                    rows.scalar_type() == ScalarType::Double, out.mutable_data_ptr()});
  return out;
}

Tensor gathered(const EdgeList& edges, const CooRows& feat) {
  if (edges.col == nullptr) return feat.tensor.clone();
  Tensor out = empty(with_rows(edges.num_edges, trailing(feat.tensor.sizes())), feat.tensor.options());
  const int64_t row_bytes = feat.dim * (feat.is_double() ? 8 : 4);
  if (out.numel() == 0) return out;
  cpu::coo_gather({edges.col, edges.is_int64, feat.data(), row_bytes, out.mutable_data_ptr()}, edges.num_edges);
  return out;
}

Tensor summed(const EdgeList& edges, const CooRows& feat, const Edges& of_edges, int64_t num_rows) {
  const bool is_copy = !of_edges.weight.defined() && !of_edges.addend.defined();
  if (is_copy && edges.row == nullptr) return gathered(edges, feat);
  Tensor out = zeros(with_rows(num_rows, trailing(feat.tensor.sizes())), feat.tensor.options());
  if (out.numel() == 0) return out;
  cpu::coo_sum({edges, feat.data(), data_or_null(of_edges.weight), data_or_null(of_edges.addend), of_edges.has_relu,
                feat.dim, feat.is_double(), out.mutable_data_ptr()});
  return out;
}

Tensor coo_sum(const OptionalTensor& row, const OptionalTensor& col, const Tensor& feat, const OptionalTensor& rhs,
               string_view op, string_view reduce, int64_t num_rows) {
  check_count(num_rows, "num_rows");
  const CooRows rows(feat, "feat");
  const CheckedEdges edges(row, col, num_rows, feat.size(0));
  const Edges of_edges(op, rhs, feat, "feat", edges.by_row().num_edges);
  Tensor out = summed(edges.by_row(), rows, of_edges, num_rows);
  if (is_mean(reduce)) out = divided(edges.by_row(), out, rows.dim);
  return out.to(feat.scalar_type());
}

Tensor products(const EdgeList& edges, const CooRows& lhs, const CooRows& rhs) {
  Tensor out = empty({edges.num_edges}, lhs.tensor.options());
  cpu::coo_dot({edges, lhs.data(), rhs.data(), lhs.dim, lhs.is_double(), out.mutable_data_ptr()});
  return out;
}

std::tuple<Tensor, Tensor> coo_sum_backward(const OptionalTensor& row, const OptionalTensor& col, const Tensor& grad,
                                            const OptionalTensor& feat, const OptionalTensor& rhs, string_view op,
                                            string_view reduce, int64_t num_cols, bool need_feat, bool need_rhs) {
  check_count(num_cols, "num_cols");
  CooRows grads(grad, "grad");
  const CheckedEdges edges(row, col, grad.size(0), num_cols);
  const bool is_relu = op == "relu_add", is_add = op == "add", reads_feat = (need_rhs && !is_add) || is_relu;
  // A weight is read for feat alone.
  const Edges of_edges(op, rhs, grad, "grad", edges.by_row().num_edges, (need_feat && !is_add) || is_relu);
  if (is_mean(reduce)) grads.tensor = divided(edges.by_row(), grads.tensor, grads.dim);
  Tensor grad_feat = empty({0}, grad.options()), grad_rhs = empty({0}, grad.options());
  if (need_feat && !is_relu) grad_feat = summed(edges.by_col(), grads, of_edges, num_cols).to(grad.scalar_type());
  if (need_rhs && is_add) grad_rhs = gathered(edges.by_edge(), grads).to(grad.scalar_type());
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
