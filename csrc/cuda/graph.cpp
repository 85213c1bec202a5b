// coo_to_csr and transpose on CUDA: PyTorch's stable radix sort, and kernels around it. No host synchronisation.

#include "graph.h"

#include <algorithm>
#include <vector>

#include "../torch/cuda.h"
#include "../torch/errors.h"
#include "kernels/graph/graph.h"

namespace halfgnn::cuda {
namespace {

// The edges (row, col), numbered by `ids` or by their order, as an adjacency whose rows are `row`.
struct Edges {
  const Tensor& row;
  const Tensor& col;
  const void* ids;
  int64_t num_rows;

  int64_t count() const { return row.numel(); }
  bool is_int64() const { return row.scalar_type() == ScalarType::Long; }
};

// Sorts edges begin ... begin + count - 1 by their rows, writes the indptr of these alone, and returns their order.
Tensor sort_chunk(const Edges& edges, int64_t begin, int64_t count, const Tensor& indptr, const Launch& launch) {
  const auto [sorted, order] = stable_sort(edges.row.narrow(0, begin, count));
  CHECK_CUDA(compress_rows(sorted.const_data_ptr(), count, edges.num_rows, edges.is_int64(), indptr.mutable_data_ptr(),
                           launch));
  return order;
}

void compress_at_once(const Edges& edges, const Csr& out, const Launch& launch) {
  const auto& [indptr, indices, edge_ids] = out;
  const Tensor order = sort_chunk(edges, 0, edges.count(), indptr, launch);
  CHECK_CUDA(permute_edges(order.const_data_ptr<int64_t>(), edges.count(), edges.col.const_data_ptr(), edges.ids,
                           edges.is_int64(), indices.mutable_data_ptr(), edge_ids.mutable_data_ptr(), launch));
}

// As if all were sorted at once. The entries below a row are those of every chunk below it, and among those of one row
// each chunk's follow those of the chunks before it.
void compress_chunks(const Edges& edges, int64_t chunk, const Csr& out, const Launch& launch) {
  const auto& [indptr, indices, edge_ids] = out;
  const int64_t num_chunks = (edges.count() + chunk - 1) / chunk;
  const Tensor offsets = empty({num_chunks, edges.num_rows + 1}, indptr.options());  // an indptr of each chunk
  const auto size_of_chunk = [&](int64_t c) { return std::min(chunk, edges.count() - c * chunk); };
  std::vector<Tensor> orders;
  for (int64_t c = 0; c < num_chunks; ++c) {
    orders.push_back(sort_chunk(edges, c * chunk, size_of_chunk(c), offsets.select(0, c), launch).to(ScalarType::Int));
  }
  indptr.copy_(sum(offsets, {0}, /*keepdim=*/false, indptr.scalar_type()));
  Tensor next = indptr.narrow(0, 0, edges.num_rows).clone();
  for (int64_t c = 0; c < num_chunks; ++c) {
    const Tensor own = offsets.select(0, c);
    const SortedChunk sorted{own.const_data_ptr(),
                             orders[static_cast<size_t>(c)].const_data_ptr<int32_t>(),
                             next.const_data_ptr(),
                             edges.num_rows,
                             c * chunk,
                             size_of_chunk(c)};
    CHECK_CUDA(place_chunk(sorted, edges.col.const_data_ptr(), edges.ids, edges.is_int64(), indices.mutable_data_ptr(),
                           edge_ids.mutable_data_ptr(), launch));
    next.copy_(sum(stack({next, own.diff()}, 0), {0}, /*keepdim=*/false, indptr.scalar_type()));
  }
}

Csr compress(const Edges& edges, const SortLimits& limits) {
  const Launch launch{current_stream()};
  const Csr out{empty({edges.num_rows + 1}, edges.row.options()), empty_like(edges.row), empty_like(edges.row)};
  if (edges.count() <= limits.whole) {
    compress_at_once(edges, out, launch);
  } else {
    compress_chunks(edges, limits.chunk, out, launch);
  }
  return out;
}

// Kernels hold positions in 32 bits, and the offsets of an int32 adjacency are int32.
void check_num_edges(const Tensor& ids) {
  const bool is_int64 = ids.scalar_type() == ScalarType::Long;
  const int64_t most = is_int64 ? (int64_t{1} << 32) - 2 : std::numeric_limits<int32_t>::max();
  CHECK_VALUE(ids.numel() <= most, "the graph has ", ids.numel(), " edges; expected at most ", most, " on CUDA",
              is_int64 ? "" : " with int32 ids");
}

}  // namespace

Csr coo_to_csr(const Tensor& row, const Tensor& col, int64_t num_rows, const SortLimits& limits) {
  check_num_edges(row);
  return compress({row.contiguous(), col.contiguous(), nullptr, num_rows}, limits);
}
Csr transpose(const Topology& topology, const Tensor& indices, int64_t num_cols, const SortLimits& limits) {
  check_num_edges(indices);
  Tensor row = empty_like(indices);
  CHECK_CUDA(expand_rows(topology, row.mutable_data_ptr(), Launch{current_stream()}));
  return compress({indices, row, topology.edge_ids, num_cols}, limits);
}

Csr coo_to_csr(const Tensor& row, const Tensor& col, int64_t num_rows) {
  return coo_to_csr(row, col, num_rows, kSortLimits);
}
Csr transpose(const Topology& topology, const Tensor& indices, int64_t num_cols) {
  return transpose(topology, indices, num_cols, kSortLimits);
}

}  // namespace halfgnn::cuda
