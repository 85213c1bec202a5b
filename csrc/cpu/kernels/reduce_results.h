// What several reductions of rows store: a row of each result for each node, past the caches if the results together
// are large; and the ids of edges that they compare.
#pragma once

#include "../../core/arguments.h"
#include "rows.h"
#include "stream.h"

namespace halfgnn::HALFGNN_ISA {

// The rows of a result, unless it is null.
template <class B>
class ResultRows {
 public:
  ResultRows(const Blocks<B>& blocks, void* out, DType type, RowStream::Total total)
      : blocks_(blocks), out_(out), type_(type), stream_(out, blocks.len() * size_of(type), total) {}
  HALFGNN_NOINLINE void store(const float* values, int64_t row) const {
    if (!out_) return;
    with_partner_type<typename B::Element>(type_, [&](auto s) {
      using S = TypeOf<decltype(s)>;
      S* out = static_cast<S*>(out_) + row * blocks_.len();
      const bool streams{stream_};
      blocks_.each([&](int64_t, int64_t slot, int64_t offset) {
        store_block<B>(B::load_acc(values + slot), out + offset, streams);
      });
    });
  }

 private:
  const Blocks<B> blocks_;
  void* const out_;
  const DType type_;
  const RowStream stream_;
};

// The same for the ids of winners.
template <class B>
class WinnerRows {
 public:
  WinnerRows(const Blocks<B>& blocks, void* out, bool is_int64, RowStream::Total total)
      : n_(blocks.len()),
        wide_(is_int64 ? static_cast<int64_t*>(out) : nullptr),
        row_(wide_ ? n_ : 0),
        rows_(blocks, wide_ ? row_.get() : out, DType::kFloat, wide_ ? RowStream::Total{} : total) {}
  void store(const uint32_t* ids, int64_t row) const {
    // Bits of floats: they are moved, not computed with.
    const float* bits = reinterpret_cast<const float*>(ids);
    if (!wide_) return rows_.store(bits, row);
    rows_.store(bits, 0);
    for (int64_t i = 0; i < n_; ++i) wide_[row * n_ + i] = bit_cast<int32_t>(row_[i]);
  }

 private:
  const int64_t n_;
  int64_t* const wide_;
  const Buffer<float> row_;  // of ids, before they are made 64 bits wide
  const ResultRows<B> rows_;
};

// All results of a call.
template <class B>
struct ReduceResults {
  const RowStream::Total total;
  const ResultRows<B> sum, mean, max, min, var, std, kept_mean, kept_std;
  const WinnerRows<B> arg_max, arg_min;

  ReduceResults(const Blocks<B>& blocks, const CopyReduceArgs& args)
      : total(bytes(args)),
        sum(blocks, args.sum, args.out_type, total),
        mean(blocks, args.mean, args.out_type, total),
        max(blocks, args.max, args.out_type, total),
        min(blocks, args.min, args.out_type, total),
        var(blocks, args.var, args.out_type, total),
        std(blocks, args.std, args.out_type, total),
        kept_mean(blocks, args.kept_mean, DType::kFloat, total),
        kept_std(blocks, args.kept_std, DType::kFloat, total),
        arg_max(blocks, args.arg_max, args.arg_is_int64, total),
        arg_min(blocks, args.arg_min, args.arg_is_int64, total) {}

 private:
  template <class... Results>
  static int64_t count(const Results*... results) {
    return (int64_t{0} + ... + int64_t{results != nullptr});
  }
  static RowStream::Total bytes(const CopyReduceArgs& args) {
    const int64_t rounded = count(args.sum, args.mean, args.max, args.min, args.var, args.std);
    const int64_t words = count(args.arg_max, args.arg_min, args.kept_mean, args.kept_std);
    const int64_t row = rounded * size_of(args.out_type) + words * static_cast<int64_t>(sizeof(float));
    return {row * args.dim * args.topology.num_rows};
  }
};

// The ids of the `count` edges from `begin` on in 32 bits: in place, or copied to `ids`.
HALFGNN_INLINE const uint32_t* short_ids(const Adjacency& adj, int64_t begin, int64_t count, uint32_t* ids) {
  if (adj.edge_ids && !adj.is_int64) return reinterpret_cast<const uint32_t*>(adj.edge_ids.as<int32_t>() + begin);
  const int64_t* edge_ids = adj.edge_ids.as<int64_t>();
  for (int64_t k = 0; k < count; ++k) ids[k] = static_cast<uint32_t>(edge_ids ? edge_ids[begin + k] : begin + k);
  return ids;
}

}  // namespace halfgnn::HALFGNN_ISA
