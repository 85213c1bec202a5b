// What edges add to pair attentions (EdgeTerms of core/attention.h), as policies of their kernels: NoEdges, and by the
// score DotEdges (dot_edges.h) or LeakyEdges (leaky_edges.h). The pass over destinations leaves a record of each edge
// to the pass over sources, which computes no logits.
#pragma once

#include "pair_score.h"
#include "signs.h"

namespace halfgnn::HALFGNN_ISA {

template <class B>
struct NoEdges {
  static constexpr bool kAny = false;
  NoEdges(const HeadBlocks<B>&, const PairPass&, const EdgeTile&) {}
  static int64_t row_bytes(const PairPass&) { return 0; }
};

// What both scores have: the bias of a logit, and the records. Those of kLeaky have signs.
template <class B>
class EdgeEntries {
 protected:
  using T = typename B::Element;
  using Acc = typename B::Acc;

  EdgeEntries(const HeadBlocks<B>& blocks, const PairPass& pass, const EdgeTile& tile)
      : blocks_(blocks),
        terms_(pass.args.edge),
        records_(static_cast<Acc*>(pass.edge_records)),
        record_len_(edge_record_len(pass.args)),
        sign_words_(records_ && pass.args.score == PairScore::kLeaky ? blocks.heads * sign_words(blocks.dim) : 0),
        factor_(blocks.heads),
        signs_(tile.max_rows() * sign_words_) {}

 public:
  static constexpr bool kAny = true;

  HALFGNN_INLINE void add_bias(const EdgeTile& tile, Acc* logits) {
    if (terms_.bias) add_edge_values(terms_.bias, terms_.bias_type, tile, logits);
  }
  HALFGNN_INLINE TileSigns signs() const { return {signs_.get(), blocks_.heads, sign_words(blocks_.dim)}; }
  // Of a tile: a_e m_e, dl_e and signs.
  HALFGNN_NOINLINE void store_entries(const EdgeTile& tile, const Acc* weights, const Acc* dl) {
    each_record(tile, [&](int64_t e, int64_t heads, Acc* record) {
      for (int64_t h = 0; h < heads; ++h) {
        record[h] = weights[e * heads + h];
        record[heads + h] = dl[e * heads + h];
      }
      uint32_t* words = reinterpret_cast<uint32_t*>(record + 2 * heads);
      for (int64_t i = 0; i < sign_words_; ++i) words[i] = signs_[e * sign_words_ + i];
    });
    if (terms_.grad_bias) store_edge_values(tile, dl, terms_.bias_type, terms_.grad_bias);
  }
  HALFGNN_NOINLINE void load_entries(const EdgeTile& tile, Acc* weights, Acc* dl) {
    each_record(tile, [&](int64_t e, int64_t heads, const Acc* record) {
      for (int64_t h = 0; h < heads; ++h) {
        weights[e * heads + h] = record[h];
        dl[e * heads + h] = record[heads + h];
      }
      const uint32_t* words = reinterpret_cast<const uint32_t*>(record + 2 * heads);
      for (int64_t i = 0; i < sign_words_; ++i) signs_[e * sign_words_ + i] = words[i];
    });
  }

 private:
  // f(edge, heads, its record) for the edges of a tile
  template <class F>
  HALFGNN_INLINE void each_record(const EdgeTile& tile, F f) const {
    with_columns(blocks_.heads, [&](auto columns) {
      for (int64_t e = 0; e < tile.num_edges(); ++e) {
        const int64_t ahead = tile.edge_id(e + kNextTile);
        prefetch_edge_for_write(records_, ahead, record_len_ * static_cast<int64_t>(sizeof(Acc)));
        f(e, columns.count(), records_ + tile.edge_id(e) * record_len_);
      }
    });
  }

 protected:
  const HeadBlocks<B>& blocks_;
  const EdgeTerms& terms_;
  Acc* records_;
  int64_t record_len_, sign_words_;  // of an edge
  Buffer<Acc> factor_;               // one per head
  Buffer<uint32_t> signs_;           // of the tile's edges
};

}  // namespace halfgnn::HALFGNN_ISA
