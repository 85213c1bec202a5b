// The launchers of edge_softmax.h: which kernel, and how a row's values are laid out over lanes.
#include "edge_softmax.h"

#include "../core/alignment.h"
#include "../core/types.cuh"
#include "edge_softmax_launch.h"

namespace halfgnn::cuda {
namespace {

constexpr int kFullBytes = 16;
constexpr int kSectorBytes = 32;
// A piece of a long row keeps a block busy for a few steps. At most so many pieces, since every block that writes a
// piece's results adds up the sums of all pieces of the row.
constexpr int64_t kPieceItems = 1 << 12;
constexpr int64_t kMaxColumns = 1 << 28;
constexpr int64_t kMaxPieces = 1 << 12;

bool is_aligned(const EdgeSoftmaxArgs& args, int64_t bytes) {
  return are_aligned(bytes, args.logits, args.grad, args.out);
}

// A few columns, of edges in the order of the rows: vectors hold several edges.
bool is_flat(const EdgeSoftmaxArgs& args) {
  const int64_t full = kFullBytes / size_of(args.type), columns = args.columns;
  return args.topology.edge_ids == nullptr && columns < full && (columns & (columns - 1)) == 0 &&
         args.topology.num_edges * columns >= full && is_aligned(args, kFullBytes);
}

int vector_of(const EdgeSoftmaxArgs& args) {
  const int64_t size = size_of(args.type), full = kFullBytes / size;
  if (is_flat(args)) return static_cast<int>(full);
  for (const int64_t vector : {full, int64_t{4}}) {
    if (args.columns % vector == 0 && is_aligned(args, vector * size)) return static_cast<int>(vector);
  }
  return 1;
}

// Lanes for the vectors of an edge. What is wider than a warp is cut into slices: those where the fewest lanes idle, of
// whole sectors.
int log2_lanes_of(int64_t num_vectors, int64_t vector_bytes) {
  int best = log2_ceil(num_vectors);
  if (best <= kLog2Warp) return best;
  best = kLog2Warp;
  const auto lanes = [&](int k) { return ceil_div(num_vectors, int64_t{1} << k) << k; };
  for (int k = kLog2Warp - 1; k >= 0 && (vector_bytes << k) >= kSectorBytes; --k) {
    if (lanes(k) < lanes(best)) best = k;
  }
  return best;
}

Rows softmax_rows_of(const Topology& topology, int64_t edges_per_piece) {
  Rows rows = rows_of(topology);
  int log2_piece = log2_ceil(edges_per_piece);
  while ((topology.num_edges >> log2_piece) > kMaxPieces) ++log2_piece;
  // Pieces may be shorter than those of rows_of, and then rows that it does not cut are cut here.
  if (rows.num_slots == 0 && log2_piece >= kLog2Piece) return rows;
  rows.log2_piece = log2_piece;
  const int64_t piece = int64_t{1} << log2_piece;
  rows.num_slots = topology.num_edges < piece ? 0 : ceil_div(topology.num_edges, piece);
  return rows;
}

struct Plan {
  SoftmaxProblem problem;
  SoftmaxShape shape;
};

Plan plan_of(const EdgeSoftmaxArgs& args, bool backward) {
  const int64_t size = size_of(args.type);
  Plan plan{};
  SoftmaxProblem& problem = plan.problem;
  plan.shape.vector = vector_of(args);
  plan.shape.flat = is_flat(args);
  const int64_t vector = plan.shape.vector, edges_per_item = plan.shape.flat ? vector / args.columns : 1;
  const int64_t num_vectors = plan.shape.flat ? 1 : args.columns / vector;
  problem.edge_ids = edge_ids_of(args.topology);
  problem.values = args.logits;
  problem.grad = args.grad;
  problem.out = args.out;
  problem.columns = args.columns;
  problem.full_vectors = plan.shape.flat ? args.topology.num_edges * args.columns / vector : 0;
  problem.item_bytes = plan.shape.flat ? kFullBytes : args.columns * size;
  problem.num_vectors = num_vectors;
  problem.log2_lanes = log2_lanes_of(num_vectors, vector * size);
  problem.num_slices = ceil_div(num_vectors, int64_t{1} << problem.log2_lanes);
  problem.rows = softmax_rows_of(args.topology, (kPieceItems >> problem.log2_lanes) * edges_per_item);

  // Lanes for twice the items of an average row. In the flat layout two at least, for a row's first and last item.
  const int64_t num_rows = args.topology.num_rows;
  const int64_t average = ceil_div(args.topology.num_edges, num_rows * edges_per_item) + (plan.shape.flat ? 1 : 0);
  const int items = softmax_items(static_cast<int>(vector * size), backward, plan.shape.flat);
  int log2_team = log2_ceil(ceil_div(2 * average, items));
  if (plan.shape.flat && log2_team == 0) log2_team = 1;
  log2_team += problem.log2_lanes;
  problem.log2_team = log2_team < kLog2Warp ? log2_team : kLog2Warp;
  plan.shape.row_blocks = ceil_div(num_rows << problem.log2_team, kSoftmaxWarps << kLog2Warp);
  return plan;
}

template <bool kBackward>
cudaError_t run(const EdgeSoftmaxArgs& args, const Launch& launch) {
  if (args.topology.num_edges == 0 || args.topology.num_rows == 0 || args.columns == 0) return cudaSuccess;
  if (args.columns > kMaxColumns || args.type == DType::kDouble) return cudaErrorInvalidValue;
  Plan plan = plan_of(args, kBackward);
  plan.problem.partial = static_cast<float*>(launch.workspace);
  return with_type(args.type, [&](auto t) {
    return launch_softmax<TypeOf<decltype(t)>, kBackward>(plan.problem, plan.shape, launch.stream);
  });
}

}  // namespace

size_t edge_softmax_workspace(const EdgeSoftmaxArgs& args) {
  if (args.topology.num_edges == 0 || args.topology.num_rows == 0 || args.columns == 0) return 0;
  return static_cast<size_t>(plan_of(args, false).problem.rows.num_slots) * 2 * args.columns * sizeof(float);
}
cudaError_t edge_softmax(const EdgeSoftmaxArgs& args, const Launch& launch) { return run<false>(args, launch); }
cudaError_t edge_softmax_backward(const EdgeSoftmaxArgs& args, const Launch& launch) { return run<true>(args, launch); }

}  // namespace halfgnn::cuda
