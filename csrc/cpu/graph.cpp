// Building compressed adjacencies on the CPU: stable counting sorts, O(edges + nodes), in parallel over ranges of
// edges.

#include "graph.h"

#include <vector>

#include "../core/with_type.h"
#include "../torch/errors.h"
#include "../torch/threads.h"

namespace halfgnn::cpu {
namespace {

// Stable counting sort of `keys` (n values in [0, buckets)): fills indptr (buckets + 1) and calls place(i, position)
// for every i. Each of a few ranges of edges counts for itself; a prefix sum over (bucket, range) then tells every
// range where its edges go.
template <class I, class Key, class Place>
void counting_sort(int64_t n, int64_t buckets, I* indptr, const Key& key, const Place& place) {
  // More ranges than this cost more memory (one counter a bucket each) than they save time.
  const int64_t ranges = n < (1 << 16) || buckets > 8 * n ? 1 : std::min<int64_t>(num_threads(), 8);
  std::vector<I> counts(static_cast<size_t>(ranges * buckets), 0);
  const auto range_begin = [&](int64_t r) { return n / ranges * r + std::min(r, n % ranges); };
  parallel_for(0, ranges, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      I* count = counts.data() + r * buckets;
      for (int64_t i = range_begin(r); i < range_begin(r + 1); ++i) ++count[key(i)];
    }
  });
  I total = 0;
  for (int64_t b = 0; b < buckets; ++b) {
    indptr[b] = total;
    for (int64_t r = 0; r < ranges; ++r) {
      const I count = counts[static_cast<size_t>(r * buckets + b)];
      counts[static_cast<size_t>(r * buckets + b)] = total;
      total += count;
    }
  }
  indptr[buckets] = total;
  parallel_for(0, ranges, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      I* next = counts.data() + r * buckets;
      for (int64_t i = range_begin(r); i < range_begin(r + 1); ++i) place(i, next[key(i)]++);
    }
  });
}

// The sort writes through its keys: a key out of range must never reach it.
template <class I>
void check_range(const I* keys, int64_t n, int64_t bound, const char* name) {
  I low = 0, high = -1;
  for (int64_t i = 0; i < n; ++i) {
    low = std::min(low, keys[i]);
    high = std::max(high, keys[i]);
  }
  CHECK_VALUE(low >= 0 && static_cast<int64_t>(high) < bound, name, " holds ", low < 0 ? low : high,
              "; expected indices in [0, ", bound, ")");
}

// Hands the type of ids to a generic lambda.
template <class F>
void with_Iype(const Tensor& ids, const F& f) {
  if (ids.scalar_type() == ScalarType::Long) {
    f(Type<int64_t>{});
  } else {
    f(Type<int32_t>{});
  }
}

}  // namespace

Csr coo_to_csr(const Tensor& row_data, const Tensor& col_data, int64_t num_rows) {
  const Tensor row = row_data.contiguous(), col = col_data.contiguous();
  Tensor indptr = empty({num_rows + 1}, row.options()), indices = empty_like(row), edge_ids = empty_like(row);
  with_Iype(row, [&](auto type) {
    using I = TypeOf<decltype(type)>;
    const auto* r = row.const_data_ptr<I>();
    const auto* c = col.const_data_ptr<I>();
    auto* out_indices = indices.mutable_data_ptr<I>();
    auto* out_ids = edge_ids.mutable_data_ptr<I>();
    check_range(r, row.numel(), num_rows, "row");
    counting_sort(
        row.numel(), num_rows, indptr.mutable_data_ptr<I>(), [&](int64_t i) { return static_cast<int64_t>(r[i]); },
        [&](int64_t i, I position) {
          out_indices[position] = c[i];
          out_ids[position] = static_cast<I>(i);
        });
  });
  return {indptr, indices, edge_ids};
}

Csr transpose(const Topology& topology, const Tensor& indices, int64_t num_cols) {
  const int64_t n = topology.num_edges;
  Tensor out_indptr = empty({num_cols + 1}, indices.options()), out_indices = empty_like(indices),
         out_ids = empty_like(indices);
  with_Iype(indices, [&](auto type) {
    using I = TypeOf<decltype(type)>;
    const auto* ptr = static_cast<const I*>(topology.indptr);
    const auto* cols = static_cast<const I*>(topology.indices);
    const auto* ids = static_cast<const I*>(topology.edge_ids);
    check_range(cols, n, num_cols, "indices");
    CHECK_VALUE(ptr[0] == 0 && ptr[topology.num_rows] == n, "indptr runs from ", ptr[0], " to ", ptr[topology.num_rows],
                "; expected 0 to ", n);
    for (int64_t r = 0; r < topology.num_rows; ++r) CHECK_VALUE(ptr[r] <= ptr[r + 1], "indptr falls after row ", r);
    // The row of every position, so that the sort can walk positions in any division.
    std::vector<I> rows(static_cast<size_t>(n));
    for (int64_t r = 0; r < topology.num_rows; ++r) {
      for (I p = ptr[r]; p < ptr[r + 1]; ++p) rows[static_cast<size_t>(p)] = static_cast<I>(r);
    }
    auto* indices_out = out_indices.mutable_data_ptr<I>();
    auto* ids_out = out_ids.mutable_data_ptr<I>();
    counting_sort(
        n, num_cols, out_indptr.mutable_data_ptr<I>(), [&](int64_t i) { return static_cast<int64_t>(cols[i]); },
        [&](int64_t i, I position) {
          indices_out[position] = rows[static_cast<size_t>(i)];
          ids_out[position] = ids ? ids[i] : static_cast<I>(i);
        });
  });
  return {out_indptr, out_indices, out_ids};
}

}  // namespace halfgnn::cpu
