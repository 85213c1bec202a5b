// What the kernels of GAT are instantiated for and called with, forward and backward.
#pragma once

#include "../../core/heads.cuh"
#include "../../core/scheduled_walk.cuh"
#include "plan.h"

namespace halfgnn::cuda {

// An entry is an edge and a head. Its words: what is known of it when its window is opened (window.cuh), and what
// its row makes of it.
enum GatWord { kNodeLogit = 0, kEdgeLogit = 1, kLse = 2, kDelta = 3, kWeight = 0, kShare = 1 };
constexpr int kGatForwardWords = 2, kGatBackwardWords = 4;

// Entries of a window, at most.
constexpr int kLog2GatEntries = 8;
constexpr int kGatEntries = 1 << kLog2GatEntries;
constexpr int kGatWarps = 2;
constexpr int kGatThreads = kGatWarps * kWarpSize;

// From sm_90 on more of what a warp shares is kept once per warp.
constexpr int kGatOlder = kCompiledArch < 900 ? 1 : 0;

template <typename T, int kVectorElements, int kVectorsPerLane, GatSums kWhich, bool kIsOneHead = false>
struct GatConfig {
  using Element = T;
  static constexpr int kVector = kVectorElements;
  static constexpr int kRepeat = kVectorsPerLane;
  using Row = Fragment<T, kVector>;  // one of the kRepeat parts of a row that a lane holds
  static constexpr bool kPositive = kWhich == GatSums::kPositive;
  static constexpr bool kDots = kWhich == GatSums::kDots;
  // Logits of nodes may be missing: the logit of an edge is then its own.
  static constexpr bool kMayLackLogits = !kPositive && !kDots;
  // Slices of one head: a lane has one entry of a window, and keeps what is known of it in registers.
  static constexpr bool kOneHead = kIsOneHead;
  // Rows of few edges are worked on several at once, each by a group (lane.cuh).
  static constexpr bool kTeams = !kDots && kRepeat == 1;
  static constexpr int kUnroll = 4;  // edges of a group in flight
  // Registers hold those edges, the sums, and what the lane knows of the window: 64 with one sum, 80 with two or with
  // dots; 8 to 32 more with narrow accesses, and before sm_90; from sm_90 on 72 with two sums of one head. Of one sum
  // of one head, of halves, ptxas has been seen to need 56 on sm_90.
  static constexpr int kLarger = kRepeat == 2 ? 2 * kBlockLess : kBlockLess;
  static constexpr int kNarrow =
      kRepeat == 1 ? 0 : (kRepeat == 4 && (kDots || (kGatOlder && !kPositive)) ? 2 : 1) + kLarger;
  static constexpr int kBlocksOfTwoSums = 6 - kGatOlder + (kOneHead && !kGatOlder ? 1 : 0);
  static constexpr int kBlocksOfOneSum =
      8 - 2 * kGatOlder + (kOneHead && sizeof(T) == 2 && kCompiledArch == 900 ? 1 : 0);
  static constexpr int kFourWarps = (kPositive || kDots ? kBlocksOfTwoSums : kBlocksOfOneSum) - kNarrow;
  static constexpr int kMinBlocks = kFourWarps * 4 / kGatWarps;
};

// Rows are gathered and added up with a weight that depends on the edge and the head.
struct GatGather {
  RowUnits units;
  Schedule schedule;  // of rows that groups share
  Ids columns;
  Ids edge_ids;
  HeadLayout layout;
  const void* source;     // rows that are gathered
  uint32_t row_elements;  // heads * dim
  bool needs_edges;       // ids of edges: for logits or dropout
  bool logit_is_float;
  const void* row_logits;   // (rows, heads): the part of s_e that belongs to the row
  const void* edge_logits;  // (E, heads); null: none
  float slope;
  DropoutMask dropout;
  uint32_t unit_blocks;  // that cover all units, for one slice
  AttentionPartials partials;
};

inline GatGather gat_gather(const GatArgs& args, const GatPlan& plan, const void* source, const void* row_logits,
                            const AttentionPartials& partials) {
  GatGather gather{};
  gather.units = plan.units;
  gather.schedule = {args.topology.schedule};
  gather.columns = indices_of(args.topology);
  gather.edge_ids = edge_ids_of(args.topology);
  gather.layout = plan.layout;
  gather.source = source;
  gather.row_elements = static_cast<uint32_t>(args.heads * args.dim);
  gather.needs_edges = args.edge_logits != nullptr || args.dropout.seed != nullptr;
  gather.logit_is_float = args.logit_type == DType::kFloat;
  gather.row_logits = row_logits;
  gather.edge_logits = args.edge_logits;
  gather.slope = static_cast<float>(args.negative_slope);
  gather.dropout = mask_of(args.dropout);
  gather.unit_blocks = static_cast<uint32_t>(ceil_div(plan.units.num_units, kGatWarps));
  gather.partials = partials;
  return gather;
}

inline int64_t gat_blocks(const GatPlan& plan) { return ceil_div(plan.units.num_units, kGatWarps) * plan.slices(); }

// Calls run(config) with the configuration that a plan asks for.
template <typename T, GatSums kSums, class Run>
cudaError_t with_gat_config(const GatPlan& plan, const Run& run) {
  constexpr int widest = kMaxAccessBytes / static_cast<int>(sizeof(T));
  if (plan.vector == widest) {
    if constexpr (kSums != GatSums::kDots) {
      if (plan.layout.log2_heads == 0) return run(GatConfig<T, widest, 1, kSums, true>{});
    }
    return run(GatConfig<T, widest, 1, kSums>{});
  }
  if (plan.vector == widest / 2) return run(GatConfig<T, widest / 2, 2, kSums>{});
  if constexpr (widest == 8) {
    if (plan.vector == 2) return run(GatConfig<T, 2, 4, kSums>{});
  }
  return run(GatConfig<T, 1, 4, kSums>{});
}

template <typename T>
__device__ float load_logit(const void* data, bool is_float, uint64_t i) {
  if (is_float) return __ldg(static_cast<const float*>(data) + i);
  return Fragment<T, 1>::load(static_cast<const T*>(data) + i).value();
}

inline __device__ GatRecord load_record(const GatRecord* record) {
  const float4 value = __ldg(reinterpret_cast<const float4*>(record));
  return {value.x, value.y, value.z, value.w};
}

}  // namespace halfgnn::cuda
