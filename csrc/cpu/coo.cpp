// Sums over an edge list on the CPU: their columns are divided among threads, so that every sum is made in the order of
// the edges.

#include "coo.h"

#include <algorithm>

#include "../torch/errors.h"
#include "kernels/choose.h"
#include "threads.h"

namespace halfgnn::cpu {
namespace {

constexpr int64_t kColumns = 16;  // of a thread at least: a line of fp32

template <class F>
void with_ids(bool is_int64, const F& f) {
  is_int64 ? f(int64_t{}) : f(int32_t{});
}

}  // namespace

void check_ids(const void* ids, bool is_int64, int64_t num_ids, const char* name, int64_t num_rows) {
  with_ids(is_int64, [&](auto type) {
    const auto* values = static_cast<const decltype(type)*>(ids);
    bool is_wrong = false;
    for (int64_t i = 0; i < num_ids; ++i) is_wrong |= values[i] < 0 || values[i] >= num_rows;
    if (!is_wrong) return;
    const auto* wrong = std::find_if(values, values + num_ids, [&](auto id) { return id < 0 || id >= num_rows; });
    CHECK_INDEX(false, name, "[", wrong - values, "] is ", *wrong, "; expected ids in [0, ", num_rows, ")");
  });
}

void count_edges(const EdgeList& edges, int64_t num_rows, int64_t* counts) {
  std::fill_n(counts, num_rows, 0);
  with_ids(edges.is_int64, [&](auto type) {
    const auto* row = static_cast<const decltype(type)*>(edges.row);
    for (int64_t e = 0; e < edges.num_edges; ++e) ++counts[row[e]];
  });
}

// kernel(args, begin, end) of parts of the columns
template <class Args>
void for_columns(const Args& args, void (*kernel)(const Args&, int64_t, int64_t)) {
  for_items((args.dim + kColumns - 1) / kColumns, args.edges.num_edges * kColumns,
            [&](int64_t begin, int64_t end) { kernel(args, begin * kColumns, std::min(end * kColumns, args.dim)); });
}

void coo_sum(const CooSumArgs& args) { for_columns(args, kernels().coo_sum.sum); }

void coo_gather(const CooGatherArgs& args, int64_t num_edges) {
  for_items(num_edges, args.row_bytes / static_cast<int64_t>(sizeof(float)),
            [&](int64_t begin, int64_t end) { kernels().coo_sum.gather(args, begin, end); });
}

void coo_relu_backward(const CooReluBackwardArgs& args) { for_columns(args, kernels().coo_sum.relu_backward); }

void coo_dot(const CooDotArgs& args) {
  for_items(args.edges.num_edges, args.dim,
            [&](int64_t begin, int64_t end) { kernels().coo_sum.dot(args, begin, end); });
}

void divide_rows(const DivideRowsArgs& args) {
  for_items(args.num_rows, args.dim,
            [&](int64_t begin, int64_t end) { kernels().coo_sum.divide_rows(args, begin, end); });
}

void coo_softmax(const CooSoftmaxArgs& args) { kernels().coo_softmax.forward(args); }

void coo_softmax_backward(const CooSoftmaxBackwardArgs& args) { kernels().coo_softmax.backward(args); }

}  // namespace halfgnn::cpu
