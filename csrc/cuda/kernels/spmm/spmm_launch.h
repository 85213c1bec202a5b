// Between spmm.cu, which chooses, and spmm_sum.cuh and spmm_extremum.cuh, which hold the kernels.
#pragma once

#include "../core/scheduled_walk.cuh"
#include "extremum.cuh"
#include "spmm.cuh"
#include "spmm.h"

namespace halfgnn::cuda {

// Walks the warp's unit in the order of a schedule, if there is one. Before sm_80 there are no registers left for that.
template <class Work>
__device__ void walk_scheduled(const Gather& gather, const Schedule& schedule, int lane, Work& work) {
  if constexpr (kCompiledArch >= 800) {
    TeamWalk(gather.units, lane, work, ScheduledWalk(schedule)).walk(gather.unit());
  } else {
    TeamWalk(gather.units, lane, work).walk(gather.unit());
  }
}

struct SumKernelArgs {
  Gather gather;
  Ids edge_ids;
  Ids columns;  // read beside gather.feat_rows only if feat_by_edge
  bool feat_by_edge;
  const void* weight;
  DType weight_type;
  uint32_t weight_row_bytes;
  int32_t vectors_per_head;
  InverseDegrees scale;  // of the columns
  float factor;
  bool divide_by_degree;
  bool scales_result;  // by the factor or the degree
  void* out;
  DType out_type;
  float* partial;
  Schedule schedule;
};

struct ExtremumKernelArgs {
  Gather gather;
  ExtremumOut result;
  float* partial;              // best value of each slot and element
  uint32_t* partial_position;  // and its position
  Schedule schedule;
};

// For features of type T. The build instantiates them: build_sources.py.
template <typename T>
cudaError_t spmm_sum_of(const SpmmSumArgs& args, const SumKernelArgs& kernel_args, const GatherShape& shape,
                        const Launch& launch);
template <typename T>
cudaError_t spmm_extremum_of(const SpmmArgs& args, const ExtremumKernelArgs& kernel_args, const GatherShape& shape,
                             const Launch& launch);

}  // namespace halfgnn::cuda
