// What the forward and the backward of GAT share: rows are gathered and added up with a weight that depends on the edge
// and the head. Include only where kernels are instantiated.
//
// A warp takes a piece of a long row, or some consecutive short rows, in one slice: the heads and, of wide heads, the
// tile that fit the warp (gat_frame.cuh). It walks the positions of its rows in windows (gat_window.cuh). The edges of
// a window that belong to one row are weighed first, each once per head, and then their rows are added
// (gat_row_sums.cuh).
#pragma once

#include "gat_row_sums.cuh"

namespace halfgnn::cuda {

// The walk of a lane over the edges of its warp's rows.
template <class Config>
class GatWalk {
 public:
  // row, position: the first of the warp's.
  __device__ GatWalk(const GatGather& gather, int slice, int lane, float* words, uint32_t row, uint32_t position)
      : window(gather, slice, lane, words, position), next_logit_(load_row_logit(row)) {}

  // Rows come in order, and those that are skipped too: the logit of the next is read ahead.
  __device__ void start_row(uint32_t row) {
    if constexpr (Config::kDots) {  // short of registers
      row_logit = load_row_logit(row);
    } else {
      row_logit = next_logit_;
      const uint32_t last_row = static_cast<uint32_t>(frame().gather.units.rows.num_rows) - 1;
      next_logit_ = load_row_logit(row < last_row ? row + 1 : last_row);
    }
  }

  // Adds the edges of a piece to `sums`. load(count as a constant, step) reads what the entries of some steps need of
  // their columns, weigh(begin, end) makes the weights of the edges at these places, use_dot as in GatRowSums.
  template <class Load, class Weigh, class Use>
  __device__ void add_edges(const Piece& piece, const Load& load, const Weigh& weigh, const Use& use_dot) {
    for (uint32_t position = piece.begin; position < piece.end;) {
      if (!window.is_open(position)) {
        window.open(position, [&](auto count, int step) {
          window.template load_edges<decltype(count)::value>(step);
          load(count, step);
        });
      }
      const int begin = static_cast<int>(position - window.base());
      const uint32_t left = piece.end - window.base();
      const int end = static_cast<int>(left < window.size() ? left : window.size());
      weigh(begin, end);
      window.share();
      sums.add_edges(window, begin, end, use_dot);
      window.share();
      position = window.base() + static_cast<uint32_t>(end);
    }
  }

  __device__ const GatFrame<Config>& frame() const { return window.frame; }

  GatWindow<Config> window;
  GatRowSums<Config> sums;
  float row_logit;  // the part of s_e that belongs to the row

 private:
  __device__ float load_row_logit(uint32_t row) const { return frame().load_logit_of(frame().gather.row_logits, row); }

  float next_logit_;  // of the next row
};

// The body of a kernel: has a Lane work on all rows of its warp, in order. The block is of kGatThreads.
template <class Lane, class Args>
__device__ void run_gat_lane(const Args& args) {
  __shared__ float words[kGatWarps][Lane::kOneHead ? 1 : Lane::kWords * kGatEntries];
  const GatGather& gather = args.gather;
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  const uint32_t slices = static_cast<uint32_t>(gather.layout.slices) * static_cast<uint32_t>(gather.layout.tiles);
  const uint32_t block = gather.layout.by_slice ? blockIdx.x % gather.unit_blocks : blockIdx.x / slices;
  const auto slice = static_cast<int>(gather.layout.by_slice ? blockIdx.x / gather.unit_blocks : blockIdx.x % slices);
  // The same in all lanes, as the compiler now knows.
  const uint32_t unit = __shfl_sync(kFullMask, block * kGatWarps + threadIdx.x / kWarpSize, 0);
  if (unit >= gather.units.num_units) return;  // whole warps
  UnitWalk walk;
  if (!walk.start(gather.units, unit, lane)) return;
  Lane work(args, slice, lane, words[threadIdx.x / kWarpSize], walk.first_row(), walk.first_position());
  walk.for_each_row(gather.units.rows, [&](const Piece& piece, bool is_skipped) { work.run(piece, is_skipped); });
}

}  // namespace halfgnn::cuda
