// The planners for ctypes. Plans are written to `out`.

#include <algorithm>
#include <cstring>
#include <iterator>

#include "../../csrc/cuda/kernels/plan/backward.h"
#include "../../csrc/cuda/kernels/plan/dot_phases.h"
#include "../../csrc/cuda/kernels/plan/edge_records.h"
#include "../../csrc/cuda/kernels/plan/gpus.h"
#include "../../csrc/cuda/kernels/plan/heads.h"
#include "../../csrc/cuda/kernels/plan/lanes.h"
#include "../../csrc/cuda/kernels/plan/tensor_cores.h"
#include "../../csrc/cuda/kernels/plan/units.h"
#include "../../csrc/cuda/kernels/plan/winners.h"

using namespace halfgnn::cuda;

namespace {

void write(const HeadLayout& layout, int64_t* out) {
  const int64_t values[] = {layout.log2_lanes, layout.log2_heads,        layout.slices,
                            layout.tiles,      int64_t{layout.by_slice}, layout.log2_groups()};
  std::copy(std::begin(values), std::end(values), out);
}

const RowWork* works() {
  static const RowWork all[] = {{0, 0},
                                kSumWork,
                                kWeightedSumWork,
                                kEdgeSumWork,
                                kEdgeSumBackwardWork,
                                kGatedSumWork[0],
                                kGatedSumWork[1],
                                kGatedSumWork[2],
                                kGatedValuesWork[0],
                                kGatedValuesWork[1],
                                kGatedValuesWork[2],
                                kExtremumWork,
                                kCopyReduceWork,
                                kCopyReduceBackwardWork,
                                kMulBackwardWork,
                                kDotWork,
                                kGatWork,
                                kGatTrainingWork,
                                kGatBackwardWork,
                                kDotAttentionWork[0],
                                kDotAttentionWork[1],
                                kDotAttentionWork[2],
                                kGatv2Work[0],
                                kGatv2Work[1],
                                kGatv2Work[2],
                                kRecordedGatv2Work[0],
                                kRecordedGatv2Work[1],
                                kDotBiasWork[0],
                                kDotBiasWork[1],
                                kDotBiasWork[2],
                                kDotColumnsWork[0],
                                kDotColumnsWork[1],
                                kDotTensorBiasWork[1][0],
                                kDotTensorBiasWork[1][1],
                                kDotTensorColumnsWork[1][0],
                                kDotTensorColumnsWork[1][1],
                                kGatv2BiasWork[0],
                                kGatv2BiasWork[1]};
  return all;
}

}  // namespace

extern "C" {

// ---- Devices.

void default_device(Device* out) { *out = {}; }
// Returns false past the last of the table.
bool known_gpu(int64_t index, char* name, Device* out) {
  if (index >= static_cast<int64_t>(std::size(kGpus))) return false;
  const Gpu& gpu = kGpus[index];
  std::strcpy(name, gpu.name.data());
  *out = {gpu.l2_mib << 20, gpu.memory_gib << 30, gpu.multiprocessors, gpu.rates()};
  return true;
}
void device_from_facts(const char* name, int major, int minor, int64_t l2_bytes, int64_t memory_bytes,
                       int64_t multiprocessors, double clock, double memory_clock, int64_t bus_bits, Device* out) {
  *out = device_of({name, major, minor, l2_bytes, memory_bytes, multiprocessors, clock, memory_clock, bus_bits});
}

// ---- The model.

double miss_rate(int64_t l2_bytes, double share, double skew, double bytes) {
  Device device;
  device.l2_bytes = l2_bytes;
  return RowCache(device, {share, skew}).miss_rate(bytes);
}

void work_of(int64_t kernel, RowWork* out) { *out = works()[kernel]; }

double instructions(double row, double batch, int64_t num_rows, int64_t num_edges, int64_t batch_edges,
                    int64_t rows_at_once, int64_t batch_accesses, bool across_rows) {
  return instructions_of({row, batch}, {num_rows, num_edges, batch_edges, rows_at_once, batch_accesses, across_rows});
}

void times(const Device* device, int64_t columns, int64_t row_bytes, int64_t num_edges, bool read_once, double skew,
           int64_t count, int64_t bytes, bool one_by_one, double cached_per_edge, double streamed, double instructions,
           double node_bytes, double once, Times* out) {
  *out = times_of(*device, {columns, row_bytes, num_edges, read_once, skew},
                  {count, bytes, one_by_one, cached_per_edge, streamed, instructions, node_bytes}, once);
}

// ---- Planners.

void lanes(const Device* device, int64_t columns, int64_t row_bytes, int64_t num_edges, bool read_once,
           int64_t num_rows, int64_t stream_bytes, int vector_bytes, int repeat, int unroll, int64_t kernel,
           int64_t* out, Slices* slices) {
  const LaneProblem problem{{columns, row_bytes, num_edges, read_once},
                            num_rows,
                            stream_bytes,
                            vector_bytes,
                            repeat,
                            unroll,
                            works()[kernel]};
  const LanePlan plan = plan_lanes(*device, problem);
  const int64_t values[] = {plan.layout.log2_lanes, plan.layout.log2_team, plan.layout.team_edges, plan.slices};
  std::copy(std::begin(values), std::end(values), out);
  *slices = LanePlanner(*device, problem).slices_of(plan.layout.log2_lanes);
}

// Whether a sum of half rows with one scattered weight per edge puts the weights in order, in how many slices, and what
// it takes; before that, what it takes if it may not.
bool ordered_weights(const Device* device, int64_t num_cols, int64_t num_rows, int64_t num_edges, int64_t row_bytes,
                     int64_t weight_bytes, int64_t* slices, Times* out) {
  constexpr int64_t kIdBytes = 4;
  LaneProblem problem{{num_cols, row_bytes, num_edges},
                      num_rows,
                      2 * kIdBytes + scattered_bytes(*device, num_edges, weight_bytes),
                      static_cast<int>(kAccessBytes),
                      1,
                      4,
                      kWeightedSumWork};
  out[0] = plan_lanes(*device, problem).times;
  problem.reordering = reordering_of(*device, num_edges, kIdBytes, weight_bytes);
  const LanePlan plan = plan_lanes(*device, problem);
  out[1] = plan.times;
  *slices = plan.slices;
  return plan.reorders;
}

// What the backward of a weighted sum takes: one gather, dots, sums.
bool weighted_backward(const Device* device, int64_t num_src, int64_t num_dst, int64_t num_edges, int64_t row_bytes,
                       int64_t weight_bytes, int64_t id_bytes, bool in_edges_in_order, Times* out) {
  const WeightedBackward problem{num_src, num_dst, num_edges, row_bytes, weight_bytes, id_bytes, in_edges_in_order};
  const WeightedBackwardPlanner planner(*device, problem);
  out[0] = planner.one_gather();
  out[1] = planner.dots();
  out[2] = planner.sums();
  return planner.takes_two_gathers();
}

double expected(const Times* times) { return times->expected(); }

// What dot attention takes. Forward: keys and values together, dots, values. Backward: to destinations and to sources
// together; dots, both softmaxes, a sum to destinations, one to sources.
bool dot_phases(const Device* device, int64_t num_dst, int64_t num_src, int64_t num_edges, int64_t heads, int64_t dim,
                bool backward, Times* out) {
  const DotAttentionProblem problem{num_dst, num_src, num_edges, heads, dim, 2, 4};
  const DotPhasesPlanner planner(*device, problem);
  if (backward) {
    const Times times[] = {
        planner.together_to_destinations(), planner.together_to_sources(), planner.dots(), planner.softmaxes(),
        planner.sum_to_destinations(),      planner.sum_to_sources()};
    std::copy(std::begin(times), std::end(times), out);
    return planner.backward_takes_phases();
  }
  out[0] = planner.together();
  out[1] = planner.dots();
  out[2] = planner.values();
  return planner.takes_phases();
}

// Columns of a slice if elements are added; seconds of additions in the widest slice (0: there is none) and of a
// gather; bytes of workspace.
int64_t winners(const Device* device, int64_t num_nodes, int64_t num_edges, int64_t dim, int64_t extremes,
                bool searches, int64_t gathered_bytes, int64_t streamed_bytes, double* seconds, int64_t* workspace) {
  const WinnersProblem problem{num_nodes, num_nodes, num_edges,      dim,           extremes,
                               4,         searches,  gathered_bytes, streamed_bytes};
  const WinnersPlanner planner(*device, problem);
  const int64_t widest = planner.slice_columns();
  seconds[0] = widest > 0 ? planner.adding(widest) : 0;
  seconds[1] = planner.gathering();
  *workspace = planner.workspace_bytes(widest);
  return planner.plan();
}

void whole_heads(const Device* device, int64_t columns, int64_t row_bytes, int64_t num_edges, int64_t heads,
                 int64_t vectors, int repeat, int max_log2_groups, int64_t num_rows, int64_t kernel, int64_t* out,
                 Slices* slices) {
  const HeadShape shape{heads, vectors, repeat, max_log2_groups};
  const Gathered gathered{columns, row_bytes, num_edges};
  const HeadLayout layout = layout_of_whole_heads(*device, shape, gathered, num_rows, works()[kernel]);
  write(layout, out);
  const int64_t lane_bytes = row_bytes / (heads * vectors) * repeat;
  const HeadStream stream{num_rows, works()[kernel], kHeadSliceBytes};
  *slices = HeadPlanner(*device, shape, gathered, lane_bytes, stream, false).slices_of(layout);
}

void parts_of_heads(const Device* device, int64_t columns, int64_t row_bytes, int64_t num_edges, int64_t heads,
                    int64_t vectors, int max_log2_groups, bool whole_heads, int64_t num_rows, int64_t kernel,
                    int64_t* out, Slices* slices) {
  const HeadShape shape{heads, vectors, 1, max_log2_groups};
  const Gathered gathered{columns, row_bytes, num_edges};
  const HeadStream stream{num_rows, works()[kernel], 4, 0, sizeof(float), kPairWork};
  const HeadLayout layout = layout_of_parts(*device, shape, gathered, 16, stream, whole_heads);
  write(layout, out);
  *slices = HeadPlanner(*device, shape, gathered, 16, stream, true).slices_of(layout);
}

int64_t slice_vectors(const Device* device, int64_t columns, int64_t row_bytes, int64_t num_edges,
                      int64_t vector_bytes) {
  return slice_vectors_of(*device, {columns, row_bytes, num_edges}, row_bytes / vector_bytes, vector_bytes);
}

int64_t edge_record_bytes(const Device* device, int64_t num_edges, int64_t heads, int64_t vectors) {
  return plan_edge_records(*device, num_edges, heads, vectors).bytes;
}

int64_t unit_of_dots(const Device* device, int64_t num_edges, int64_t slices) {
  return dot_unit_edges(*device, num_edges, slices);
}
int64_t unit_of_elementwise(const Device* device, int64_t num_edges, int64_t vectors) {
  return elementwise_unit_edges(*device, num_edges, vectors);
}
int64_t chunks_of_terms(int64_t num_edges) { return term_chunks(num_edges); }
int64_t batches_of_copies(int64_t num_batches) { return copy_batches(num_batches); }

bool tensor_cores(int wanted, int compute_major, int64_t heads, int64_t dim, int64_t element_bytes, bool is_aligned,
                  int pass, int64_t num_rows, int64_t num_edges, int terms) {
  const AttentionProblem problem{heads,
                                 dim,
                                 element_bytes,
                                 is_aligned,
                                 static_cast<AttentionPass>(pass),
                                 num_rows,
                                 num_edges,
                                 static_cast<AttentionTerms>(terms)};
  return takes_tensor_cores(static_cast<TensorCores>(wanted), compute_major, problem);
}
bool edge_records(const Device* device, int64_t heads, int64_t dim, int64_t element_bytes, int64_t num_rows,
                  int64_t num_edges) {
  const auto problem = [&](AttentionPass pass) {
    return AttentionProblem{heads, dim, element_bytes, true, pass, num_rows, num_edges};
  };
  const int64_t bytes = edge_record_layout(heads, dim * element_bytes / kAccessBytes).bytes;
  return takes_edge_records(*device, problem(kDestinationPass), problem(kSourcePass), bytes);
}
}
