// Between spmm.cu, which chooses, and spmm_sum.cuh and spmm_extremum.cuh, which hold the kernels.
#pragma once

#include "../core/join.cuh"
#include "../core/long_rows.cuh"
#include "../core/scheduled_walk.cuh"
#include "extremum.cuh"
#include "spmm.cuh"
#include "spmm.h"

namespace halfgnn::cuda {

// Of this block. Mostly there is one slice, and nothing is divided.
inline __device__ uint32_t slice_number(const Gather& gather) {
  uint32_t number = gather.first_slice;
  if (gridDim.x != gather.unit_blocks) number += blockIdx.x / gather.unit_blocks;
  return number;
}

// The unit of this warp, as Gather::unit() has it.
inline __device__ uint32_t unit_of(const Gather& gather, uint32_t slice) {
  return (blockIdx.x - (slice - gather.first_slice) * gather.unit_blocks) * (blockDim.x / kWarpSize) +
         threadIdx.x / kWarpSize;
}

// The slice of a lane, as LaneSlice has it.
template <class Config>
__device__ LaneSlice<Config> slice_of(const Gather& gather, int lane, uint32_t number) {
  LaneSlice<Config> slice(gather, lane);
  const int log2_lanes = gather.units.layout.log2_lanes;
  slice.first = static_cast<int>((number * Config::kRepeat) << log2_lanes) + (lane & ((1 << log2_lanes) - 1));
  return slice;
}

// Walks the warp's unit in the order of a schedule, if there is one, and joins the pieces of a long row if this one is
// the last of them to be done: work.join(lane, slots, whether they are all of the row) joins what was left at slots.
// Before sm_80 there are no registers left for schedules. counters: of every slice and slot, 0 at first.
template <class Work>
__device__ void walk_and_join(const Gather& gather, const Schedule& schedule, uint32_t* counters, int lane,
                              uint32_t unit, Work& work) {
  const Rows& rows = gather.units.row_units.rows;
  const auto walk = [&](auto&& walk) {
    if (!walk.walk(unit)) return;
    const int64_t row = walk.row();
    const LongRow of_piece = long_row_of(rows, row, rows.indptr.offset(row), rows.indptr.offset(row + 1));
    join_pieces(of_piece, counters + slice_number(gather) * rows.num_slots, walk.slot(), lane,
                [&](const LongRow& slots, bool is_row) { work.join(lane, slots, is_row); });
  };
  if constexpr (kCompiledArch >= 800) {
    walk(ScheduledWalk(gather.units, schedule, lane, work));
  } else {
    walk(TeamWalk(gather.units, lane, work));
  }
}

// The address of a row, one multiply-add: that of LaneSource takes another instruction.
inline __device__ const char* row_of(const char* first, uint32_t row, uint32_t row_bytes) {
#ifdef __CUDA_ARCH__
  uint64_t distance;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(distance) : "r"(row), "r"(row_bytes));
  return first + distance;
#else
  return first + uint64_t{row} * row_bytes;
#endif
}

// Ids::id, addressed by row_of.
inline __device__ uint32_t id_at(const Ids& ids, uint32_t position) {
  if (ids.data == nullptr) return position;
  const char* low_word = row_of(static_cast<const char*>(ids.data), position, ids.is_int64 ? 8 : 4);
  return __ldcs(reinterpret_cast<const unsigned int*>(low_word));
}

// Calls batch() for the edges of a chunk: for_each_even_batch or, where rows are rarely narrow or accesses are not
// wide, for_each_batch, which is less code.
template <class Config, bool kIsEven, class Batch>
__device__ void for_each_batch_of(const Team& team, const Lengths& lengths, int chunk, const Batch& batch) {
  if constexpr (kIsEven && Config::kVectorBytes == kMaxAccessBytes && Config::kUnroll == 4) {
    for_each_even_batch<Config::kUnroll>(team, lengths, chunk, batch);
  } else {
    for_each_batch<Config::kUnroll>(team, lengths, chunk, batch);
  }
}

// Columns of a lane in joining: in one access of fp32, if the slices are of vectors.
template <class Config>
constexpr int kJoinedColumns = Config::kVector < 4 ? Config::kVector : 4;

// Calls use(column) for the columns of this warp's slice that a lane joins, kJoinedColumns at a time.
template <class Config, class Use>
__device__ void for_each_joined_column(const Gather& gather, int lane, const Use& use) {
  const int64_t len = int64_t{gather.num_vectors} * Config::kVector;
  const int64_t width = (int64_t{Config::kRepeat} << gather.units.layout.log2_lanes) * Config::kVector;
  const int64_t begin = slice_number(gather) * width, end = begin + width < len ? begin + width : len;
  constexpr int kColumns = kJoinedColumns<Config>;
  for (int64_t column = begin + lane * kColumns; column < end; column += kWarpSize * kColumns) use(column, len);
}

struct SumKernelArgs {
  Gather gather;
  Ids edge_ids;
  Ids columns;  // read beside gather.feat_rows only if feat_by_edge
  bool feat_by_edge;
  const void* weight;
  DType weight_type;
  uint32_t weight_row_bytes;
  void* ordered_weight;  // one weight per position, which this launch writes; null: it does not
  int32_t vectors_per_head;
  InverseDegrees scale;  // of the columns
  float factor;
  bool divide_by_degree;
  bool scales_result;  // by the factor or the degree
  bool stores_type;    // the results are of the features' type, and not scaled
  void* out;
  DType out_type;
  float* partial;
  uint32_t* counters;
  Schedule schedule;
};

struct ExtremumKernelArgs {
  Gather gather;
  ExtremumOut result;
  float* partial;              // best value of each slot and element
  uint32_t* partial_position;  // and its position
  uint32_t* counters;
  Schedule schedule;
};

// Bytes of the counters of the pieces of rows of so many bytes: a slice has kMinSliceBytes at least, or the whole row.
size_t counter_bytes(const Rows& rows, int64_t row_bytes);
// Sets those that a plan uses to 0.
cudaError_t clear_counters(const GatherPlan& plan, uint32_t* counters, const Launch& launch);

// For features of type T. The build instantiates them: build_sources.py.
template <typename T>
cudaError_t spmm_sum_of(const SpmmSumArgs& args, const SumKernelArgs& kernel_args, const GatherShape& shape,
                        const Launch& launch);
template <typename T>
cudaError_t spmm_extremum_of(const SpmmArgs& args, const ExtremumKernelArgs& kernel_args, const GatherShape& shape,
                             const Launch& launch);

}  // namespace halfgnn::cuda
