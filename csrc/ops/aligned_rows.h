// Rows of the operands and the results of a pair attention with terms of edges, as its kernels read and write them.
#pragma once

#include <algorithm>

#include "checks.h"

namespace halfgnn {

// Multiples of `elements` in their last dimension, of `dim`, at such
// addresses. Zeros behind them add nothing to a logit, and what is added up there is cut off.
class AlignedRows {
 public:
  AlignedRows() : AlignedRows(0, 1) {}  // any rows
  // Rows of heads, like those of `feat`, and rows of columns, like those of `edge_feat`.
  static AlignedRows heads(const Tensor& feat) {
    const int64_t bytes = backend_of(feat.device()).edge_term_limits.row_bytes;
    return {feat.dim() == 3 ? feat.size(2) : 0, std::max<int64_t>(bytes / feat.element_size(), 1)};
  }
  static AlignedRows columns(const OptionalTensor& edge_feat) {
    if (!edge_feat || edge_feat->dim() != 2) return {};
    return {edge_feat->size(1), backend_of(edge_feat->device()).edge_term_limits.row_columns};
  }

  Tensor align(const Tensor& rows) const {
    if (elements_ == 1 || rows.dim() < 2 || rows.size(-1) != dim_) return rows;
    if (padding_ > 0) return constant_pad_nd(rows, {0, padding_});
    const Tensor contiguous = rows.contiguous();
    const auto bytes = static_cast<uintptr_t>(elements_ * rows.element_size());
    return reinterpret_cast<uintptr_t>(contiguous.const_data_ptr()) % bytes == 0 ? contiguous : contiguous.clone();
  }
  OptionalTensor align(const OptionalTensor& rows) const { return rows ? OptionalTensor(align(*rows)) : std::nullopt; }
  // The weight (heads, dim, columns) of columns: rows of heads, of which each element has a row of columns.
  OptionalTensor align_with(const AlignedRows& columns, const OptionalTensor& weight) const {
    if (!weight || weight->dim() != 3 || weight->size(1) != dim_ || padding_ == 0) return columns.align(weight);
    return columns.align(OptionalTensor(constant_pad_nd(*weight, {0, 0, 0, padding_})));
  }
  // Of a result in aligned rows; empty if it was not needed.
  Tensor cut(const Tensor& result) const {
    return padding_ == 0 || result.dim() < 2 ? result : result.narrow(-1, 0, dim_).contiguous();
  }
  Tensor cut_with(const AlignedRows& columns, const Tensor& weight) const {
    return columns.cut(padding_ == 0 || weight.dim() != 3 ? weight : weight.narrow(1, 0, dim_).contiguous());
  }

 private:
  AlignedRows(int64_t dim, int64_t elements)
      : dim_(dim), elements_(elements), padding_((elements - dim % elements) % elements) {}

  int64_t dim_, elements_, padding_;
};

}  // namespace halfgnn
