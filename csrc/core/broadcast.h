// Broadcasting of the trailing shapes of two operands, as DGL and NumPy do it: aligned on the right. Torch-free.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "types.h"

namespace halfgnn {

using Shape = std::vector<int64_t>;

// Owns the tables of a Broadcast.
class BroadcastPlan {
 public:
  // lhs and rhs are trailing shapes (without the node or edge dimension). Where op reads only one operand, pass its
  // shape twice. `valid` is false if they do not broadcast (for dot: also if the last dimensions differ).
  BroadcastPlan(const Shape& lhs, const Shape& rhs, Op op);

  bool valid = true;
  Shape out_shape;  // trailing; for dot the last dimension is 1 (no dimension where there was none)
  int64_t lhs_len = 1;
  int64_t rhs_len = 1;
  int64_t out_len = 1;
  int64_t outer = 1;
  int64_t inner = 1;
  int lhs_step = 0;
  int rhs_step = 0;
  int out_step = 0;

  Broadcast view() const;
  // Every element has its own lhs and rhs element: no broadcasting at all.
  bool is_elementwise() const { return outer == 1 && lhs_step == 1 && rhs_step == 1 && out_step == 1; }
  // rhs is one scalar for each run of `inner` elements of lhs: one weight per head.
  bool is_rhs_per_head() const;
  // dot of equal shapes: one result for each run of `inner` elements.
  bool is_plain_dot() const;

 private:
  using Dim = BroadcastDim;
  void fill_tables(const std::vector<Dim>& dims);
  bool offsets_are(const std::vector<int64_t>& offsets, int64_t step) const;

  std::vector<int64_t> lhs_offset_, rhs_offset_, out_offset_;
  std::vector<Dim> dims_;
};

inline Broadcast BroadcastPlan::view() const {
  Broadcast view;
  view.outer = outer;
  view.inner = inner;
  view.lhs_offset = lhs_offset_.data();
  view.rhs_offset = rhs_offset_.data();
  view.out_offset = out_offset_.data();
  view.lhs_step = lhs_step;
  view.rhs_step = rhs_step;
  view.out_step = out_step;
  view.num_dims = static_cast<int>(dims_.size());
  for (size_t d = 0; d < dims_.size() && d < kMaxBroadcastDims; ++d) view.dims[d] = dims_[d];
  return view;
}

inline BroadcastPlan::BroadcastPlan(const Shape& lhs, const Shape& rhs, Op op) {
  const bool dot = op == Op::kDot;
  const int64_t rank = static_cast<int64_t>(lhs.size() > rhs.size() ? lhs.size() : rhs.size());
  auto at = [rank](const Shape& shape, int64_t i) {
    const int64_t j = i - (rank - static_cast<int64_t>(shape.size()));
    return j < 0 ? int64_t{1} : shape[static_cast<size_t>(j)];
  };
  out_shape.assign(static_cast<size_t>(rank), 1);
  std::vector<Dim> dims;  // innermost first while building
  for (int64_t i = rank - 1; i >= 0; --i) {
    const int64_t l = at(lhs, i), r = at(rhs, i);
    const bool summed = dot && i == rank - 1;
    if (l != r && (summed || (l != 1 && r != 1))) {
      valid = false;
      return;
    }
    const int64_t size = l == 1 ? r : l;
    out_shape[static_cast<size_t>(i)] = summed ? 1 : size;
    Dim dim{size, l == 1 ? 0 : lhs_len, r == 1 ? 0 : rhs_len, summed ? 0 : out_len};
    lhs_len *= l;
    rhs_len *= r;
    out_len *= summed ? 1 : size;
    if (size == 1 && !summed) continue;
    auto continues = [&dim, &dims](int64_t Dim::* stride) {
      return dim.*stride == dims.back().*stride * dims.back().size;
    };
    // The summed dimension stays the inner one: nothing merges with it.
    const bool merges = !dims.empty() && !(dot && dims.size() == 1) && continues(&Dim::lhs) && continues(&Dim::rhs) &&
                        continues(&Dim::out);
    if (merges) {
      dims.back().size *= size;
    } else {
      dims.push_back(dim);
    }
  }
  if (dims.empty()) dims.push_back({1, 1, 1, dot ? 0 : 1});
  fill_tables(dims);
  dims_ = std::move(dims);
}

inline void BroadcastPlan::fill_tables(const std::vector<Dim>& dims) {
  inner = dims[0].size;
  // A dimension of one element may take any step: the contiguous one selects the fast kernels.
  const bool single = inner == 1;
  lhs_step = single || dims[0].lhs ? 1 : 0;
  rhs_step = single || dims[0].rhs ? 1 : 0;
  out_step = dims[0].out ? 1 : 0;
  outer = 1;
  for (size_t d = 1; d < dims.size(); ++d) outer *= dims[d].size;
  lhs_offset_.resize(static_cast<size_t>(outer));
  rhs_offset_.resize(static_cast<size_t>(outer));
  out_offset_.resize(static_cast<size_t>(outer));
  for (int64_t o = 0; o < outer; ++o) {
    int64_t rest = o, l = 0, r = 0, out = 0;
    for (size_t d = 1; d < dims.size(); ++d) {
      const int64_t i = rest % dims[d].size;
      rest /= dims[d].size;
      l += i * dims[d].lhs;
      r += i * dims[d].rhs;
      out += i * dims[d].out;
    }
    lhs_offset_[static_cast<size_t>(o)] = l;
    rhs_offset_[static_cast<size_t>(o)] = r;
    out_offset_[static_cast<size_t>(o)] = out;
  }
}

inline bool BroadcastPlan::offsets_are(const std::vector<int64_t>& offsets, int64_t step) const {
  for (int64_t o = 0; o < outer; ++o)
    if (offsets[static_cast<size_t>(o)] != o * step) return false;
  return true;
}

inline bool BroadcastPlan::is_rhs_per_head() const {
  return rhs_step == 0 && lhs_step == 1 && out_step == 1 && rhs_len == outer && offsets_are(lhs_offset_, inner) &&
         offsets_are(rhs_offset_, 1);
}

inline bool BroadcastPlan::is_plain_dot() const {
  return out_step == 0 && lhs_step == 1 && rhs_step == 1 && out_len == outer && offsets_are(lhs_offset_, inner) &&
         offsets_are(rhs_offset_, inner);
}

}  // namespace halfgnn
