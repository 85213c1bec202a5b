// What the forward and the backward of GAT share: rows are gathered and added up with a weight that depends on the edge
// and the head. Include only where kernels are instantiated.
//
// A warp takes a piece of a long row, or some consecutive short rows, in one slice: the heads and, of wide heads, the
// tile that fit the warp (frame.cuh). It walks the positions of its rows in windows (window.cuh). The edges of
// a window that belong to one row are weighed first, each once per head, and then their rows are added
// (row_sums.cuh).
//
// Rows of few edges are not worked on by the whole warp: each group takes one of them, so that as many are worked on at
// once. A window has all edges of these rows, so that each is weighed in one go. Few means that the window has room for
// as many edges of every group's row. So how a row is added up depends on its own degree, and not on its
// neighbours, and rows may be walked in the order of a schedule.
//
// With dots (GatSums) or narrow accesses warps take all rows, and windows do not end with a row.
#pragma once

#include "../../core/scheduled_walk.cuh"
#include "../../core/uniform.cuh"
#include "row_sums.cuh"

namespace halfgnn::cuda {

// The walk of a lane over the edges of its warp's rows.
template <class Config>
class GatWalk {
 public:
  __device__ GatWalk(const GatGather& gather, int slice, int lane, float* words) : window(gather, slice, lane, words) {}

  // Adds the edges of a piece to `sums`. load(count as a constant, step) reads what the entries of some steps need of
  // their columns, weigh(entries) makes the weights of these entries, use_dot as in GatRowSums.
  template <class Load, class Weigh, class Use>
  __device__ void add_edges(const Piece& piece, const Load& load, const Weigh& weigh, const Use& use_dot) {
    row_logit = load_row_logit(piece.row);
    for (uint32_t position = piece.begin; position < piece.end;) {
      if (!window.is_open(position)) window.open(position, with_edges(load));
      const int begin = static_cast<int>(position - window.base());
      const uint32_t left = piece.end - window.base();
      const int end = static_cast<int>(left < window.size() ? left : window.size());
      weigh(window.entries_of_places(begin, end));
      window.share();
      sums.add_edges(window, begin, end, use_dot);
      window.share();
      position = window.base() + static_cast<uint32_t>(end);
    }
  }

  // Adds the edges of a row per group to `sums`: this lane's group takes `row`, which has `degree` edges.
  template <class Load, class Weigh>
  __device__ void add_rows(uint32_t row, int degree, const Load& load, const Weigh& weigh) {
    row_logit = load_row_logit(row);
    const int longest = warp_max(degree);
    if (longest == 0) return;
    window.open_rows(longest, with_edges(load));
    weigh(window.entries_of_rows(degree, longest));
    window.share();
    sums.add_rows_of_groups(window, degree, longest);
    window.share();
  }

  __device__ const GatFrame<Config>& frame() const { return window.frame; }

  GatWindow<Config> window;
  GatRowSums<Config> sums;
  float row_logit;  // the part of s_e that belongs to the row

 private:
  __device__ float load_row_logit(uint32_t row) const {
    const void* logits = frame().gather.row_logits;
    return Config::kMayLackLogits && logits == nullptr ? 0.f : frame().load_logit_of(logits, row);
  }
  template <class Load>
  __device__ auto with_edges(const Load& load) {
    return [&](auto count, int step) {
      window.template load_edges<decltype(count)::value>(step);
      load(count, step);
    };
  }
};

// A row of a unit, that of one group.
struct GroupRow {
  uint32_t row;
  int degree;
  bool exists;
};

// Has a Lane work on the rows of a unit that `rows` names by bits: a row per group at a time. Their ids are read one
// step ahead.
template <class Walk, class Lane>
__device__ void run_rows_of_groups(const Walk& walk, uint32_t rows, Lane& work) {
  auto& window = work.window();
  const auto& frame = window.frame;
  const auto load_ids = [&](int first) {
    window.load_ids_of_rows(walk.piece(first + window.group_of_place(frame.lane)));
  };
  int first = __ffs(static_cast<int>(rows)) - 1;
  load_ids(first);
  while (rows != 0) {
    const int own = first + frame.group();
    const bool exists = (rows >> own & 1u) != 0;
    const Piece piece = walk.piece(own);
    const GroupRow row{exists ? piece.row : 0, exists ? piece.num_edges() : 0, exists};
    rows &= kFullMask << (first + (1 << frame.log2_groups()));
    window.take_ids();
    first = __ffs(static_cast<int>(rows)) - 1;
    if (rows != 0) load_ids(first);
    work.run(row);
  }
}

// Has a Lane work on the rows of a unit. Rows of so few edges that those of all groups fit in a window are worked on by
// one group each; then others by the whole warp, one after the other.
template <class Walk, class Lane>
__device__ void run_rows(const Walk& walk, const RowUnits& units, Lane& work) {
  auto& window = work.window();
  uint32_t others = 1;
  if (!walk.is_slot()) {
    // Asked for again behind the others, so that no register holds the answer meanwhile.
    const auto rows_of = [&](bool are_of_groups) {
      const uint32_t degree = walk.degree_of_own_row();
      const bool is_whole = walk.has_own_row(units.rows, window.frame.lane) && !units.rows.is_long(degree);
      return __ballot_sync(kFullMask, is_whole && (degree <= window.row_size()) == are_of_groups);
    };
    const uint32_t of_groups = rows_of(true);
    if (of_groups != 0) run_rows_of_groups(walk, of_groups, work);
    others = rows_of(false);
  }
  for (; others != 0; others &= others - 1) {
    const Piece piece = walk.piece(__ffs(static_cast<int>(others)) - 1);
    window.start(piece.begin, piece.end);
    work.run(piece);
  }
}

// The body of a kernel: has a Lane work on all rows of its warp, in order. The block is of kGatThreads.
template <class Lane, class Args>
__device__ void run_gat_lane(const Args& args) {
  __shared__ float words[kGatWarps][Lane::kOneHead ? 1 : Lane::kWords * kGatEntries];
  const GatGather& gather = args.gather;
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  const uint32_t slices = static_cast<uint32_t>(gather.layout.slices) * static_cast<uint32_t>(gather.layout.tiles);
  uint32_t block = blockIdx.x, slice = 0;
  if (slices > 1) {
    block = gather.layout.by_slice ? blockIdx.x % gather.unit_blocks : blockIdx.x / slices;
    slice = gather.layout.by_slice ? blockIdx.x / gather.unit_blocks : blockIdx.x % slices;
  }
  // The same in all lanes, as the compiler now knows.
  const uint32_t unit = __shfl_sync(kFullMask, block * kGatWarps + threadIdx.x / kWarpSize, 0);
  if (unit >= gather.units.num_units) return;  // whole warps
  Lane work(args, static_cast<int>(slice), lane, words[threadIdx.x / kWarpSize]);
  if constexpr (Lane::kTeams && kCompiledArch >= 800) {  // before that there are no registers left for schedules
    ScheduledRows rows;
    if (rows.start(gather.units, gather.schedule, unit, lane)) run_rows(rows, gather.units, work);
  } else {
    UnitWalk walk;
    if (!walk.start(gather.units, unit, lane)) return;
    if constexpr (Lane::kTeams) return run_rows(walk, gather.units, work);
    work.window().start(walk.first_position(), static_cast<uint32_t>(gather.units.rows.num_edges));
    walk.for_each_row(gather.units.rows, [&](const Piece& piece, bool is_skipped) {
      if (!is_skipped) work.run(piece);
    });
  }
}

}  // namespace halfgnn::cuda
