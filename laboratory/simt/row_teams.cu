// A kernel that walks rows as csrc/cuda/kernels/core/row_teams.cuh says, and writes down what it was given: layouts of
// the test's own, for graphs that are too small for the planners to choose them.

#include "row_teams.h"

#include <cassert>

#include "../../csrc/cuda/kernels/core/launch.cuh"

namespace halfgnn::cuda {
namespace {

constexpr int kUnroll = 4;

struct Args {
  TeamUnits units;
  TeamRecord record;
  int passes;
};

// Counts how often a group gets each edge and each row ends.
struct Recorder {
  const Args& args;

  __device__ int passes() const { return args.passes; }
  __device__ uint32_t load(uint32_t position) const {
    const int64_t num_edges = args.units.row_units.rows.num_edges;
    assert(position < num_edges || num_edges == 0);
    return position;
  }
  __device__ void start(const Team&, const TeamRow& row, uint32_t index, int) const {
    assert(index < args.units.row_units.rows.num_rows);
    assert(!row.exists() || row.line < args.record.num_lines);
  }
  __device__ void add(const Team& team, const TeamRow& row, const Lengths& lengths, uint32_t held, int chunk) const {
    assert(row.num_edges >= lengths.shortest && row.num_edges <= lengths.longest);
    for_each_batch<kUnroll>(team, lengths, chunk, [&](auto edges, auto full, int start) {
      for (int u = 0; u < decltype(edges)::value; ++u) {
        const int place = start + u * team.num_groups;
        const uint32_t position = __shfl_sync(kFullMask, held, team.source + place);
        const bool is_past = chunk + place + team.group >= row.num_edges;
        assert(!decltype(full)::value || !is_past);
        const bool leads = (team.lane & ((1 << args.units.layout.log2_lanes) - 1)) == 0;
        if (leads && !is_past) {
          ++args.record.edges[position];
          args.record.lines[position] = row.line;
        }
      }
    });
  }
  __device__ void finish(const Team& team, const TeamRow& row, bool is_piece) const {
    if (row.exists() && team.lane == 0) ++(is_piece ? args.record.pieces : args.record.rows)[row.line];
  }
};

__global__ void record_kernel(const Args args) {
  Recorder recorder{args};
  const auto lane = static_cast<int>(threadIdx.x & (kWarpSize - 1));
  TeamWalk(args.units, lane, recorder).walk(blockIdx.x);
}

}  // namespace

cudaError_t record_teams(const Topology& topology, const TeamLayout& layout, int log2_rows, int passes,
                         const TeamRecord& record) {
  const TeamUnits units{row_units_of(topology, 1, log2_rows), layout};
  return launch(record_kernel, units.row_units.num_units + 1, kWarpSize, nullptr, Args{units, record, passes});
}

}  // namespace halfgnn::cuda
