// Between row_teams.cu and row_teams.cc.
#pragma once

#include "../../csrc/cuda/kernels/core/row_teams.cuh"

namespace halfgnn::cuda {

struct TeamRecord {
  int* edges;       // how often a group got each edge
  uint32_t* lines;  // and for which line
  int* rows;        // how often each row ended
  int* pieces;      // and the piece of each slot
  int64_t num_lines;
};

cudaError_t record_teams(const Topology& topology, const TeamLayout& layout, int log2_rows, int passes,
                         const TeamRecord& record);

}  // namespace halfgnn::cuda
