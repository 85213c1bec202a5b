// The weights (heads, dim, columns) by which dot attention projects features of edges: W^T of a row of heads, and W of
// numbers of columns that were summed over edges. Both are products of one row, while it is in the first-level cache:
// rows without edges cost nothing, and no table of products is written.
#pragma once

#include "entries.h"
#include "head_blocks.h"

namespace halfgnn::HALFGNN_ISA {

// Which products a pass makes.
enum class Products { kNone, kToColumns, kFromColumns, kBoth };

template <class B>
class ColumnWeights {
  using T = typename B::Element;
  using Acc = typename B::Acc;
  using E = EntryBlock<Acc>;
  using V = typename E::V;

 public:
  // width: of a row of columns, a whole number of vectors. weight may be null: there are no products.
  ColumnWeights(const HeadBlocks<B>& blocks, const void* weight, int64_t columns, int64_t width, Products products)
      : blocks_(blocks),
        columns_(columns),
        width_(width),
        to_(makes(weight, products, Products::kToColumns) ? blocks.len() * width : 0),
        from_(makes(weight, products, Products::kFromColumns) ? columns * blocks.workspace() : 0),
        row_(blocks.len()) {
    const T* elements = static_cast<const T*>(weight);
    if (makes(weight, products, Products::kToColumns)) load_to_columns(elements);
    if (makes(weight, products, Products::kFromColumns)) load_from_columns(elements);
  }

  // out (heads, width) = W^T row
  HALFGNN_NOINLINE void to_columns(const T* row, Acc* out) const {
    const int64_t heads = blocks_.heads, dim = blocks_.dim, width = width_;
    decode_row(row, heads * dim, row_.get());
    for (int64_t i = 0; i < width; i += E::kWidth) {
      const Acc *x = row_, *weight = to_ + i;
      for (int64_t h = 0; h < heads; ++h, x += dim, weight += dim * width) {
        V sum[kChains] = {};  // which additions do not wait for
        int64_t d = 0;
        for (; d + kChains <= dim; d += kChains)
          for (int k = 0; k < kChains; ++k)
            sum[k] = multiply_add(E::weight(x[d + k]), E::load_acc(weight + (d + k) * width), sum[k]);
        for (; d < dim; ++d) sum[0] = multiply_add(E::weight(x[d]), E::load_acc(weight + d * width), sum[0]);
        E::store_acc(add(add(sum[0], sum[1]), add(sum[2], sum[3])), out + h * width + i);
      }
    }
  }
  // sums += W numbers, of which there is a row (heads, width)
  HALFGNN_NOINLINE void add_from_columns(const Acc* numbers, Acc* sums) const {
    const int64_t columns = columns_, width = width_, stride = blocks_.workspace();
    const Acc* weight = from_;
    blocks_.each([&](int64_t h, int64_t slot, int64_t) {
      const Acc *x = numbers + h * width, *of_slot = weight + slot;
      typename B::V sum[2] = {B::load_acc(sums + slot), {}};
      int64_t c = 0;
      for (; c + 2 <= columns; c += 2)
        for (int k = 0; k < 2; ++k)
          sum[k] = multiply_add(B::weight(x[c + k]), B::load_acc(of_slot + (c + k) * stride), sum[k]);
      if (c < columns) sum[0] = multiply_add(B::weight(x[c]), B::load_acc(of_slot + c * stride), sum[0]);
      B::store_acc(add(sum[0], sum[1]), sums + slot);
    });
  }

 private:
  static constexpr int kChains = 4;

  static bool makes(const void* weight, Products products, Products which) {
    return weight && (products == which || products == Products::kBoth);
  }
  // Rows of columns, padded with zeros.
  HALFGNN_NOINLINE void load_to_columns(const T* weight) {
    for (int64_t i = 0; i < blocks_.len(); ++i) {
      decode_row(weight + i * columns_, columns_, to_ + i * width_);
      for (int64_t c = columns_; c < width_; ++c) to_[i * width_ + c] = 0;
    }
  }
  // By columns, laid out like rows of sums.
  HALFGNN_NOINLINE void load_from_columns(const T* weight) {
    Buffer<T> row(blocks_.len());
    for (int64_t c = 0; c < columns_; ++c) {
      for (int64_t i = 0; i < blocks_.len(); ++i) row[i] = weight[i * columns_ + c];
      load_own(blocks_, row.get(), from_ + c * blocks_.workspace());
    }
  }

  const HeadBlocks<B>& blocks_;
  int64_t columns_, width_;
  Buffer<Acc> to_;    // (heads, dim, width)
  Buffer<Acc> from_;  // (columns, workspace)
  Buffer<Acc> row_;
};

}  // namespace halfgnn::HALFGNN_ISA
