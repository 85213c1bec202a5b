// What edges add to GATv2: rows inside the LeakyReLU, given or projected from a few columns, and a bias. Rows exist for
// the edges of a tile alone.
#pragma once

#include "../row_tiles.h"
#include "edge_features.h"
#include "pair_edges.h"

namespace halfgnn::HALFGNN_ISA {

// ---- products of a tile's columns (edges, columns) and a weight (columns, stride), which has a whole number of
// vectors

// out[k] = columns of edge k times N vectors of the weight, for K edges
template <class E, int K, int N>
HALFGNN_INLINE void project_block(int64_t columns, const typename E::Acc* rows, int64_t width,
                                  const typename E::Acc* weight, int64_t stride, typename E::Acc* out) {
  typename E::V sum[K][N] = {};
  for (int64_t c = 0; c < columns; ++c) {
    typename E::V w[N];
    for (int n = 0; n < N; ++n) w[n] = E::load_acc(weight + c * stride + n * E::kWidth);
    for (int k = 0; k < K; ++k) {
      const auto x = E::weight(rows[k * width + c]);
      for (int n = 0; n < N; ++n) sum[k][n] = multiply_add(x, w[n], sum[k][n]);
    }
  }
  for (int k = 0; k < K; ++k)
    for (int n = 0; n < N; ++n) E::store_acc(sum[k][n], out + k * stride + n * E::kWidth);
}
template <class Acc>
HALFGNN_NOINLINE void project_columns(int64_t edges, int64_t columns, const Acc* rows, int64_t width, const Acc* weight,
                                      TileRows<Acc> out) {
  using E = EntryBlock<Acc>;
  constexpr int kMost = E::kEdges > 1 && kTileBlocks > 2 ? 6 : E::kEdges;  // whose sums registers hold
  const int64_t stride = out.stride;
  const auto project = [&](int64_t e, auto count) {
    constexpr int K = decltype(count)::value;
    int64_t i = 0;
    for (; i + 2 * E::kWidth <= stride; i += 2 * E::kWidth)
      project_block<E, K, 2>(columns, rows + e * width, width, weight + i, stride, out.data + e * stride + i);
    if (i < stride)
      project_block<E, K, 1>(columns, rows + e * width, width, weight + i, stride, out.data + e * stride + i);
  };
  int64_t e = 0;
  for (; e + kMost <= edges; e += kMost) project(e, Count<kMost>{});
  in_batches<E::kEdges>(e, edges, project);
}

// The products of a weight (columns, stride) and derivatives of LeakyReLU, 1 or slope by the signs of an edge, summed
// for every four signs: a head's product takes an addition for each of them, not a multiplication for each element.
template <class B>
class SignProducts {
  using Acc = typename B::Acc;
  using E = EntryBlock<Acc>;
  using V = typename E::V;
  static constexpr int64_t kBits = 4, kSums = 1 << kBits;
  // Columns that are summed together. More would double a table that is to stay in the first-level cache.
  static constexpr int64_t kPart = E::kWidth > 1 ? 16 : 2;
  static constexpr int kVectors = kPart / E::kWidth;

 public:
  // Empty if columns is 0.
  SignProducts(const HeadBlocks<B>& blocks, int64_t columns)
      : heads_(blocks.heads),
        per_head_(blocks.per_head * B::kWidth),
        bytes_((per_head_ + 7) / 8),
        parts_((columns + kPart - 1) / kPart),
        sums_(parts_ * heads_ * bytes_ * 2 * kSums * kPart),
        line_(parts_ * kPart) {}

  HALFGNN_NOINLINE void fill(int64_t columns, const Acc* weight, int64_t stride, Acc slope) {
    Acc* sums = sums_;
    for (int64_t part = 0; part < parts_; ++part)
      for (int64_t i = 0; i < heads_ * bytes_ * 2; ++i, sums += kSums * kPart)
        for (int64_t j = 0; j < kPart; ++j) {
          const int64_t c = part * kPart + j;
          const Acc* own = weight + c * stride + i / (2 * bytes_) * per_head_;
          const int64_t first = i % (2 * bytes_) * kBits, left = c < columns ? per_head_ - first : 0;
          for (int64_t sign = 0; sign < kSums; ++sign) {
            Acc sum = 0;
            for (int64_t bit = 0; bit < kBits && bit < left; ++bit)
              sum += own[first + bit] * (sign >> bit & 1 ? Acc(1) : slope);
            sums[sign * kPart + j] = sum;
          }
        }
  }
  // The sum over heads of dl times the head's product. Valid until the next call.
  HALFGNN_INLINE const Acc* multiply_signs(const TileSigns& signs, int64_t edge, const Acc* dl) const {
    const Acc* sums = sums_;
    const int64_t heads = heads_, num_bytes = bytes_;
    for (int64_t part = 0; part < parts_; ++part) {
      V total[kVectors] = {};
      for (int64_t h = 0; h < heads; ++h) {
        const uint8_t* bytes = signs.head(edge, h);
        V lower[kVectors] = {}, upper[kVectors] = {};
        for (int64_t i = 0; i < num_bytes; ++i, sums += 2 * kSums * kPart) {
          const Acc *low = sums + bytes[i] % kSums * kPart, *high = sums + (kSums + bytes[i] / kSums) * kPart;
          for (int n = 0; n < kVectors; ++n) {
            lower[n] = add(lower[n], E::load_acc(low + n * E::kWidth));
            upper[n] = add(upper[n], E::load_acc(high + n * E::kWidth));
          }
        }
        for (int n = 0; n < kVectors; ++n) total[n] = multiply_add(E::weight(dl[h]), add(lower[n], upper[n]), total[n]);
      }
      for (int n = 0; n < kVectors; ++n) E::store_acc(total[n], line_ + part * kPart + n * E::kWidth);
    }
    return line_.get();
  }

 private:
  int64_t heads_, per_head_, bytes_, parts_;
  Buffer<Acc> sums_, line_;
};

// ---- derivatives

// For C blocks of a head, from block `block` on, with d_e the derivative of the edge's logit by z_e without attn: sum
// += dl_e d_e. kRows: `rows` become dl_e d_e. kAttn: before, attn_sum += dl_e d_e times the rows.
template <class B, bool kRows, bool kAttn, int C>
HALFGNN_INLINE void derive_blocks(const HeadBlocks<B>& blocks, const LeakyScore<B>& score, const TileSigns& signs,
                                  int64_t head, int64_t block, int64_t first, int64_t last, const typename B::Acc* dl,
                                  TileRows<typename B::Acc> rows, typename B::Acc* sum, typename B::Acc* attn_sum) {
  using V = typename B::V;
  const int64_t slot = blocks.slot(head, block), heads = blocks.heads;
  V total[C], attn_total[C];
  for (int c = 0; c < C; ++c) {
    total[c] = B::load_acc(sum + slot + c * B::kWidth);
    if (kAttn) attn_total[c] = B::load_acc(attn_sum + slot + c * B::kWidth);
  }
  for (int64_t e = first; e < last; ++e) {
    const typename LeakyScore<B>::Factor factor = score.factor(dl[e * heads + head]);
    const BlockSigns<B, C> of_edge(signs.head(e, head), block);
    for (int c = 0; c < C; ++c) {
      const V term = of_edge.choose(c, factor.above, factor.below);
      if constexpr (kRows) {
        typename B::Acc* row = rows.data + e * rows.stride + slot + c * B::kWidth;
        if (kAttn) attn_total[c] = multiply_add(term, B::load_acc(row), attn_total[c]);
        B::store_acc(term, row);
      }
      total[c] = add(total[c], term);
    }
  }
  for (int c = 0; c < C; ++c) {
    B::store_acc(total[c], sum + slot + c * B::kWidth);
    if (kAttn) B::store_acc(attn_total[c], attn_sum + slot + c * B::kWidth);
  }
}
// The same for all blocks.
template <class B, bool kRows, bool kAttn>
HALFGNN_NOINLINE void derive_run(const HeadBlocks<B>& blocks, const LeakyScore<B>& score, const TileSigns& signs,
                                 int64_t first, int64_t last, const typename B::Acc* dl, TileRows<typename B::Acc> rows,
                                 typename B::Acc* sum, typename B::Acc* attn_sum) {
  constexpr int kBlocks = B::kWidth > 1 ? 32 / B::kWidth : 1;  // of a word of signs
  for (int64_t h = 0; h < blocks.heads; ++h) {
    int64_t b = 0;
    for (; b + kBlocks <= blocks.per_head; b += kBlocks)
      derive_blocks<B, kRows, kAttn, kBlocks>(blocks, score, signs, h, b, first, last, dl, rows, sum, attn_sum);
    for (; b < blocks.per_head; ++b)
      derive_blocks<B, kRows, kAttn, 1>(blocks, score, signs, h, b, first, last, dl, rows, sum, attn_sum);
  }
}
// ... and the edges [first, last) of a row, in runs.
template <bool kRows, bool kAttn, class B>
HALFGNN_INLINE void derive_by_signs(const HeadBlocks<B>& blocks, const LeakyScore<B>& score, const TileSigns& signs,
                                    int64_t first, int64_t last, const typename B::Acc* dl,
                                    TileRows<typename B::Acc> rows, RunningSum<typename B::Acc>* sums,
                                    RunningSum<typename B::Acc>* attn_sums) {
  while (first < last) {
    int64_t left = sums->left_in_run();
    if (kAttn && attn_sums->left_in_run() < left) left = attn_sums->left_in_run();
    const int64_t end = last - first < left ? last : first + left;
    derive_run<B, kRows, kAttn>(blocks, score, signs, first, end, dl, rows, sums->sum(),
                                kAttn ? attn_sums->sum() : nullptr);
    sums->added(end - first);
    if (kAttn) attn_sums->added(end - first);
    first = end;
  }
}

// ---- the policy

template <class B>
class LeakyEdges : public EdgeEntries<B> {
  using Base = EdgeEntries<B>;
  using Base::blocks_;
  using Base::terms_;
  using typename Base::Acc;
  using typename Base::T;
  using E = EntryBlock<Acc>;

 public:
  LeakyEdges(const HeadBlocks<B>& blocks, const PairPass& pass, const EdgeTile& tile)
      : Base(blocks, pass, tile),
        score_(blocks, pass),
        has_rows_(has_rows(pass)),
        partial_weight_(pass.by_src ? nullptr : static_cast<Acc*>(pass.partial_weight)),
        stride_((blocks.workspace() + E::kWidth - 1) / E::kWidth * E::kWidth),
        columns_(has_rows_ && terms_.weight ? terms_.feat_dim : 0),
        feat_(columns_ ? terms_.feat : nullptr, pass.args.type, columns_, tile),
        inside_(has_rows_ ? tile.max_rows() * stride_ : 0),
        weight_(columns_ * stride_),
        products_(blocks, terms_.grad_feat ? columns_ : 0),
        weight_sum_(partial_weight_ ? columns_ * stride_ : 0) {
    if (has_rows_ && stride_ > blocks.workspace())
      for (int64_t i = 0; i < tile.max_rows() * stride_; ++i) inside_[i] = 0;
    if (columns_) load_weight();
    if (partial_weight_) weight_sum_.start();
  }
  static int64_t row_bytes(const PairPass& pass) {
    return has_rows(pass) ? pass.args.heads * pass.args.dim * static_cast<int64_t>(sizeof(Acc)) : 0;
  }
  // Whether anything is added inside the LeakyReLU.
  HALFGNN_INLINE bool has_rows() const { return has_rows_; }
  TileRows<Acc> rows() const { return {inside_.get(), stride_}; }

  // Makes the rows of the tile's edges.
  HALFGNN_INLINE void load(const EdgeTile& tile) {
    if (columns_) {
      feat_.load(tile);
      project_columns(tile.num_edges(), columns_, feat_.row(0), feat_.width(), weight_.get(), rows());
    } else if (has_rows_) {
      load_rows(tile);
    }
  }
  // sum += dl_e times the derivative of the logit of e by z_e without attn, for the edges [first, last), whose rows
  // become these terms. attn_sum += the terms times the rows, unless store_weight() does that.
  HALFGNN_INLINE void derive(int64_t first, int64_t last, const Acc* dl, RunningSum<Acc>* sum,
                             RunningSum<Acc>* attn_sum) {
    dl_ = dl;
    if (!has_rows_)
      return derive_by_signs<false, false>(blocks_, score_, this->signs(), first, last, dl, {}, sum, attn_sum);
    if (partial_weight_)
      return derive_by_signs<true, false>(blocks_, score_, this->signs(), first, last, dl, rows(), sum, attn_sum);
    derive_by_signs<true, true>(blocks_, score_, this->signs(), first, last, dl, rows(), sum, attn_sum);
  }
  // Stores the gradients of the tile's edges, of which rows() has the terms.
  HALFGNN_INLINE void store_tile(const EdgeTile& tile) {
    const int64_t n = tile.num_edges();
    if (terms_.grad_key) store_rows(tile);
    if (partial_weight_) add_outer(0, n, columns_, feat_.row(0), feat_.width(), rows(), &weight_sum_);
    if (terms_.grad_feat) store_columns(tile);
  }
  // The share of the gradient of weight, and of that of attn: sum over e of a term times W f_e.
  HALFGNN_NOINLINE void store_weight(RunningSum<Acc>* attn_sum) {
    if (!partial_weight_) return;
    const Acc* sums = weight_sum_.finish();
    Buffer<Acc> row(blocks_.len());
    for (int64_t c = 0; c < columns_; ++c) {
      store_with_attn(sums + c * stride_, row.get());
      for (int64_t i = 0; i < blocks_.len(); ++i) partial_weight_[i * columns_ + c] = row[i];
      for (int64_t i = 0; i < blocks_.workspace(); ++i)
        attn_sum->sum()[i] += weight_[c * stride_ + i] * sums[c * stride_ + i];
      attn_sum->added(1);
    }
  }

 private:
  HALFGNN_NOINLINE void load_rows(const EdgeTile& tile) {
    const T* key = static_cast<const T*>(terms_.key);
    for (int64_t e = 0; e < tile.num_edges(); ++e) {
      prefetch_row(key + tile.edge_id(e + kTileAhead) * blocks_.len(), blocks_.len());
      load_own(blocks_, key + tile.edge_id(e) * blocks_.len(), inside_ + e * stride_);
    }
  }
  // out = attn times a row of sums
  template <class S>
  HALFGNN_NOINLINE void store_with_attn(const Acc* sums, S* out) const {
    blocks_.each([&](int64_t, int64_t slot, int64_t offset) {
      B::store(multiply(B::load_acc(score_.attn + slot), B::load_acc(sums + slot)), out + offset);
    });
  }
  HALFGNN_NOINLINE void store_rows(const EdgeTile& tile) {
    T* grad = static_cast<T*>(terms_.grad_key);
    for (int64_t e = 0; e < tile.num_edges(); ++e) {
      prefetch_row(grad + tile.edge_id(e + kTileAhead / 2) * blocks_.len(), blocks_.len());
      store_with_attn(inside_ + e * stride_, grad + tile.edge_id(e) * blocks_.len());
    }
  }
  HALFGNN_NOINLINE void store_columns(const EdgeTile& tile) {
    const int64_t bytes = columns_ * size_of(feat_.type());
    for (int64_t e = 0; e < tile.num_edges(); ++e) {
      prefetch_edge_for_write(terms_.grad_feat, tile.edge_id(e + kNextTile), bytes);
      const Acc* gradient = products_.multiply_signs(this->signs(), e, dl_ + e * blocks_.heads);
      encode_heads(gradient, columns_, feat_.type(), terms_.grad_feat, tile.edge_id(e));
    }
  }
  // The weight by columns, laid out like rows of sums.
  HALFGNN_NOINLINE void load_weight() {
    const T* weight = static_cast<const T*>(terms_.weight);
    Buffer<T> row(blocks_.len());
    for (int64_t c = 0; c < columns_; ++c) {
      Acc* out = weight_ + c * stride_;
      for (int64_t i = 0; i < stride_; ++i) out[i] = 0;
      for (int64_t i = 0; i < blocks_.len(); ++i) row[i] = weight[i * columns_ + c];
      load_own(blocks_, row.get(), out);
    }
    if (terms_.grad_feat) fill_products();
  }
  // Of attn times the weight, without the elements that a last block repeats.
  HALFGNN_NOINLINE void fill_products() {
    Buffer<Acc> factors(columns_ * stride_);
    for (int64_t c = 0; c < columns_; ++c)
      blocks_.each([&](int64_t h, int64_t slot, int64_t) {
        const bool repeats = slot == blocks_.slot(h, blocks_.whole);
        const typename B::V x = multiply(B::load_acc(weight_ + c * stride_ + slot), B::load_acc(score_.attn + slot));
        B::store_acc(repeats ? keep(x, blocks_.mask) : x, factors + c * stride_ + slot);
      });
    products_.fill(columns_, factors.get(), stride_, score_.slope);
  }
  static bool has_rows(const PairPass& pass) { return !pass.by_src && (pass.args.edge.key || pass.args.edge.weight); }

  const LeakyScore<B> score_;
  bool has_rows_;
  Acc* partial_weight_;
  int64_t stride_, columns_;
  EdgeFeatures<Acc> feat_;
  Buffer<Acc> inside_;  // rows of the tile's edges; in the backward then the terms of their gradients
  Buffer<Acc> weight_;  // (columns, stride)
  SignProducts<B> products_;
  RunningSum<Acc> weight_sum_;  // of terms times columns
  const Acc* dl_ = nullptr;     // of the tile
};

}  // namespace halfgnn::HALFGNN_ISA
