// The planners for ctypes. Plans are written to `out`.

#include <algorithm>
#include <iterator>

#include "../../csrc/cuda/kernels/plan/heads.h"
#include "../../csrc/cuda/kernels/plan/lanes.h"
#include "../../csrc/cuda/kernels/plan/units.h"

using namespace halfgnn::cuda;

namespace {

void write(const HeadLayout& layout, int64_t* out) {
  const int64_t values[] = {layout.log2_lanes, layout.log2_heads,        layout.slices,
                            layout.tiles,      int64_t{layout.by_slice}, layout.log2_groups()};
  std::copy(std::begin(values), std::end(values), out);
}

}  // namespace

extern "C" {

double miss_rate(int64_t l2_bytes, double share, bool skewed, double bytes) {
  return RowCache({l2_bytes}, {share, skewed ? Popularity::kSkewed : Popularity::kEqual}).miss_rate(bytes);
}

void lanes(int64_t l2_bytes, int64_t columns, int64_t row_bytes, int64_t num_edges, bool read_once, int64_t num_rows,
           int64_t stream_bytes, int vector_bytes, int repeat, int unroll, int64_t* out) {
  const LaneProblem problem{
      {columns, row_bytes, num_edges, read_once}, num_rows, stream_bytes, vector_bytes, repeat, unroll};
  const LanePlan plan = plan_lanes({l2_bytes}, problem);
  const int64_t values[] = {plan.log2_lanes, plan.log2_team, plan.team_edges, plan.slices};
  std::copy(std::begin(values), std::end(values), out);
}

void whole_heads(int64_t l2_bytes, int64_t columns, int64_t row_bytes, int64_t num_edges, int64_t heads,
                 int64_t vectors, int repeat, int max_log2_groups, int64_t* out) {
  const HeadShape shape{heads, vectors, repeat, max_log2_groups};
  write(layout_of_whole_heads({l2_bytes}, shape, {columns, row_bytes, num_edges}), out);
}

void parts_of_heads(int64_t l2_bytes, int64_t columns, int64_t row_bytes, int64_t num_edges, int64_t heads,
                    int64_t vectors, int max_log2_groups, bool whole_heads, int64_t* out) {
  const HeadShape shape{heads, vectors, 1, max_log2_groups};
  const Gathered gathered{columns, row_bytes, num_edges};
  write(layout_of_parts({l2_bytes}, shape, gathered, 16, {4, 0}, whole_heads), out);
}

int64_t slice_vectors(int64_t l2_bytes, int64_t columns, int64_t row_bytes, int64_t num_edges, int64_t vector_bytes) {
  return slice_vectors_of({l2_bytes}, {columns, row_bytes, num_edges}, row_bytes / vector_bytes, vector_bytes);
}

int64_t unit_of_dots(int64_t num_edges, int64_t slices) { return dot_unit_edges(num_edges, slices); }
int64_t unit_of_elementwise(int64_t num_edges, int64_t vectors) { return elementwise_unit_edges(num_edges, vectors); }
int64_t chunks_of_terms(int64_t num_edges) { return term_chunks(num_edges); }
int64_t batches_of_copies(int64_t num_batches) { return copy_batches(num_batches); }
}
