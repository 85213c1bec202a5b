// The forward launcher of gat_attention.h, and how work is divided in both directions.

#include "gat_attention.h"

#include <cmath>
#include <limits>

#include "../core/types.cuh"
#include "../plan/device.h"
#include "gat_attention_plan.h"

namespace halfgnn::cuda {

bool is_valid_gat(const GatArgs& args) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max() / static_cast<int64_t>(sizeof(float));
  return args.type != DType::kDouble && (args.logit_type == args.type || args.logit_type == DType::kFloat) &&
         args.heads > 0 && args.heads <= most && args.dim > 0 && args.dim <= most / args.heads;
}

namespace {

// ---- Division of labour. Narrow slices keep a part of the gathered matrix in the L2 cache, but every slice reads ids
// and logits anew, and computes its weights anew. Costs are in bytes of device memory, as in spmm.cu.

constexpr double kCacheSpeed = 2.3;     // L2 bandwidth / memory bandwidth
constexpr double kUsableCache = 0.75;   // of the L2 cache: streams pass through it as well
constexpr double kTilingGain = 0.9;     // slices must cost this much less
constexpr int64_t kMinSliceBytes = 64;  // one access of device memory, two sectors of the caches
constexpr double kPairBytes = 24;       // an edge and head: a sector of the logits, from the L2 cache, and its weight
constexpr int kMaxLog2Groups = 3;       // times 4 edges each: the 32 whose ids a warp holds

struct Labour {
  const GatArgs& args;
  int64_t vectors;       // of a head
  int64_t vector_bytes;  // that a lane reads of a row: all its vectors
  int64_t cache;

  double slice_bytes(const HeadLayout& layout) const {
    return static_cast<double>(vector_bytes << (layout.log2_lanes + layout.log2_heads));
  }
  double cost(const HeadLayout& layout) const {
    const auto edges = static_cast<double>(args.topology.num_edges),
               slices = static_cast<double>(layout.slices) * layout.tiles;
    const auto rows = static_cast<double>(args.num_cols);
    const double row_bytes = static_cast<double>(args.heads * args.dim * size_of(args.type));
    const double resident = rows * (layout.by_slice ? std::fmin(slice_bytes(layout), row_bytes) : row_bytes);
    const double ratio = resident > 0 ? kUsableCache * static_cast<double>(cache) / resident : 1;
    const double missed = ratio >= 1 ? 0 : 1 - std::sqrt(ratio);
    const double ids = args.topology.is_int64 ? 8 : 4, heads = 1 << layout.log2_heads;
    double stream = ids;
    if (args.edge_logits != nullptr) stream += heads * static_cast<double>(size_of(args.logit_type));
    if (args.topology.edge_ids != nullptr && (args.edge_logits != nullptr || args.dropout.seed != nullptr))
      stream += ids;
    return edges * slices * (slice_bytes(layout) + heads * kPairBytes) / kCacheSpeed + missed * edges * row_bytes +
           (layout.by_slice ? slices : 1) * edges * stream;
  }

  // Lanes past the last vector idle rather than take more edges than a warp has ids of.
  HeadLayout layout(int log2_lanes, int log2_heads, bool by_slice) const {
    HeadLayout made{
        static_cast<int32_t>(args.heads), static_cast<int32_t>(vectors), log2_lanes, log2_heads, 1, 1, by_slice};
    made.slices = static_cast<int32_t>(ceil_div(args.heads, int64_t{1} << log2_heads));
    while (made.log2_groups() > kMaxLog2Groups) ++made.log2_lanes;
    made.tiles = static_cast<int32_t>(ceil_div(vectors, int64_t{1} << made.log2_lanes));
    return made;
  }

  HeadLayout choose(bool whole_heads) const {
    const int widest = vectors > kWarpSize ? kLog2Warp : log2_ceil(vectors);
    const int padded = log2_ceil(args.heads), room = kLog2Warp - widest;
    int log2_lanes = widest, log2_heads = padded < room ? padded : room;
    HeadLayout best = layout(log2_lanes, log2_heads, false);
    double least = cost(best) * kTilingGain;
    while (log2_heads > 0 || (log2_lanes > 0 && !whole_heads)) {
      --(log2_heads > 0 ? log2_heads : log2_lanes);
      const HeadLayout next = layout(log2_lanes, log2_heads, true);
      if (static_cast<int64_t>(slice_bytes(next)) < kMinSliceBytes) break;
      if (cost(next) < least) {
        least = cost(next);
        best = next;
      }
    }
    return best;
  }
};

// Rows that a warp takes: enough for kWantedEdges on average, unless that leaves a device idle.
constexpr int64_t kWantedEdges = 64;
constexpr int64_t kWantedWarps = 1 << 13;
constexpr int kMaxLog2Rows = 4;

int32_t log2_rows_of(const Topology& topology, int64_t slices) {
  int32_t log2_rows = 0;
  while (log2_rows < kMaxLog2Rows && topology.num_edges << log2_rows < kWantedEdges * topology.num_rows &&
         (topology.num_rows >> (log2_rows + 1)) * slices >= kWantedWarps) {
    ++log2_rows;
  }
  return log2_rows;
}

}  // namespace

GatPlan plan_gat(const GatArgs& args, uintptr_t bits, bool whole_heads) {
  const int64_t size = size_of(args.type);
  GatPlan plan{};
  plan.rows = rows_of(args.topology);
  plan.vector = static_cast<int>(kMaxAccessBytes / size);
  while (args.dim % plan.vector != 0 || bits % static_cast<uintptr_t>(plan.vector * size) != 0) plan.vector /= 2;
  // As the kernels have it: 16 bytes a lane, four vectors at most.
  const int64_t full = kMaxAccessBytes / (plan.vector * size), repeat = full < 4 ? full : 4;
  const Labour labour{args, ceil_div(args.dim / plan.vector, repeat), repeat * plan.vector * size, l2_cache_bytes()};
  plan.layout = labour.choose(whole_heads);
  plan.layout.vectors = static_cast<int32_t>(args.dim / plan.vector);
  plan.log2_rows = log2_rows_of(args.topology, plan.slices());
  plan.num_units = plan.rows.num_slots + ceil_div(args.topology.num_rows, int64_t{1} << plan.log2_rows);
  return plan;
}

namespace {

int num_vectors(const GatArgs& args) { return args.lse == nullptr ? 1 : 2; }

uintptr_t address_bits(const GatArgs& args) {
  uintptr_t bits = 0;
  for (const void* data : {args.feat, static_cast<const void*>(args.out.value),
                           static_cast<const void*>(args.out.residual), static_cast<const void*>(args.positive)}) {
    bits |= reinterpret_cast<uintptr_t>(data);
  }
  return bits;
}

}  // namespace

size_t gat_attention_workspace(const GatArgs& args) {
  if (!is_valid_gat(args)) return 0;
  return attention_partial_bytes(rows_of(args.topology), args.heads, args.dim, num_vectors(args));
}

cudaError_t gat_attention(const GatArgs& given, const Launch& launch) {
  GatArgs args = given;
  if (args.lse == nullptr) args.out.residual = nullptr;  // nobody will read it
  if (args.topology.num_rows == 0 || args.heads * args.dim == 0) return cudaSuccess;
  if (!is_valid_gat(args)) return cudaErrorInvalidValue;
  const GatPlan plan = plan_gat(args, address_bits(args), false);
  const AttentionPartials partials = attention_partials(plan.rows, args.heads, num_vectors(args), launch.workspace);
  const cudaError_t status =
      with_type(args.type, [&](auto t) { return gat_attention_of<TypeOf<decltype(t)>>(args, plan, partials, launch); });
  if (status != cudaSuccess) return status;
  return combine_attention(
      {plan.rows, partials, args.heads, args.dim, args.type, args.out, static_cast<float*>(args.lse), args.positive},
      launch);
}

}  // namespace halfgnn::cuda
