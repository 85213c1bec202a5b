// What is stored of a row, or of a piece of a long one, by the kernels of lanes and those on tensor cores.
#pragma once

#include "pass.h"

namespace halfgnn::cuda {

// Of a policy of ../edges.cuh.
template <typename T, class Terms>
class PairEpilogue {
 public:
  __device__ explicit PairEpilogue(const PairArgs& args) : args_(args) {}

  // sum: of exponentials. Terms of edges may remove all edges.
  static __device__ bool has_edges(const Piece& piece, float sum) {
    return Terms::kHasTerms ? !(sum == 0.f) : !piece.is_empty();
  }
  // What results are multiplied by.
  static __device__ float result_factor(const Piece& piece, float sum) {
    return piece.is_whole_row ? reciprocal_of_sum(sum, has_edges(piece, sum)) : 1.f;
  }

  // Elements of a row from `element` on. Vectors of a piece have no others beside them.
  template <int kCount>
  __device__ void store_result(const Piece& piece, uint32_t element, const float (&values)[kCount]) const {
    const int64_t at = static_cast<int64_t>(piece.line) * args_.row_elements + element;
    if (!piece.is_whole_row) {
      store_rounded(args_.partials.vectors + at, values);
    } else if (is_wide()) {
      store_rounded(args_.edge.columns.wide + at, values);
    } else {
      store_precise<T>(args_.out, at, values);
    }
  }
  // Of one head: by one lane.
  __device__ void store_statistics(const Piece& piece, int head, float maximum, float sum) const {
    if (!piece.is_whole_row) {
      // A piece of which nothing is left adds nothing, at the lowest maximum. Its sum keeps that of the row from being
      // 0.
      const float kept = Terms::kHasTerms && !has_edges(piece, sum) ? 1.f : sum;
      args_.partials.store_sums(piece.line, args_.layout.heads, head, {maximum, kept, 0.f, 0.f});
    } else if (args_.lse != nullptr) {
      args_.lse[static_cast<int64_t>(piece.row) * args_.layout.heads + head] =
          lse_of(maximum, sum, has_edges(piece, sum));
    }
  }

  template <int kCount>
  __device__ void store_value_gradient(const Piece& piece, uint32_t element, const float (&values)[kCount]) const {
    store_gradient(piece, element, args_.grad_value, args_.partial_value, values);
  }
  template <int kCount>
  __device__ void store_key_gradient(const Piece& piece, uint32_t element, const float (&keys)[kCount]) const {
    if (piece.is_whole_row && is_wide()) {
      store_rounded(args_.edge.columns.wide + static_cast<int64_t>(piece.line) * args_.row_elements + element, keys);
    } else {
      store_gradient(piece, element, args_.grad_key, args_.partial_key, keys);
    }
  }

 private:
  __device__ bool is_wide() const { return Terms::kMayBeWide && args_.edge.columns.wide != nullptr; }
  template <int kCount>
  __device__ void store_gradient(const Piece& piece, uint32_t element, void* gradient, float* partial,
                                 const float (&values)[kCount]) const {
    const int64_t at = static_cast<int64_t>(piece.line) * args_.row_elements + element;
    if (piece.is_whole_row) {
      store_rounded(static_cast<T*>(gradient) + at, values);
    } else {
      store_rounded(partial + at, values);
    }
  }

  const PairArgs& args_;
};

}  // namespace halfgnn::cuda
