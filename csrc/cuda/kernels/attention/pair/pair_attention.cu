// The launcher of pair_attention.h: how rows are read, what the passes of a call are given, and what follows them.

#include "pair_attention.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "../../core/combine.h"
#include "../../core/types.cuh"
#include "../../plan/device.h"
#include "../../plan/edge_records.h"
#include "../../plan/heads.h"
#include "../../plan/tensor_cores.h"
#include "../gat/head_logits.h"
#include "dispatch.h"
#include "phases.h"

namespace halfgnn::cuda {
namespace {

PairLogit logit_of(const PairAttentionArgs& call) {
  if (call.score == PairScore::kDot) return {nullptr, static_cast<float>(call.factor), 0.f, 0.f, 0.f};
  constexpr double kLeastAbsolute = 0x1p-40;  // for a slope of 1: `ratio` is finite, and what this adds is lost in fp32
  const double linear = .5 + .5 * call.factor, found = .5 - .5 * call.factor;
  const double absolute = found == 0. ? kLeastAbsolute : found;
  return {call.attn, static_cast<float>(linear), static_cast<float>(absolute), static_cast<float>(linear / absolute),
          static_cast<float>(call.factor)};
}

// ---- How rows are read.

uintptr_t bits_of(const void* data) { return reinterpret_cast<uintptr_t>(data); }

// The addresses of all that is accessed by vectors, or-ed.
uintptr_t address_bits(const PairAttentionArgs& call) {
  return bits_of(call.query) | bits_of(call.key) | bits_of(call.value) | bits_of(call.attn) | bits_of(call.out.value) |
         bits_of(call.out.residual) | bits_of(call.grad) | bits_of(call.grad_query) | bits_of(call.grad_key) |
         bits_of(call.grad_value) | bits_of(call.edge.key) | bits_of(call.edge.value) | bits_of(call.edge.grad_key) |
         bits_of(call.edge.grad_value) | bits_of(call.edge.wide_out);
}

// Whether rows of columns are as kernels read them, if there are any. Other rows of columns are fp32.
bool fits_columns(const EdgeTerms& terms, DType type) {
  const uintptr_t wide_bits =
      bits_of(terms.query) | bits_of(terms.out) | bits_of(terms.grad_out) | bits_of(terms.grad_query);
  const uintptr_t feat_bits = bits_of(terms.feat) | bits_of(terms.grad_feat);
  return terms.feat_dim % kPairColumns == 0 && wide_bits % (kPairColumns * sizeof(float)) == 0 &&
         feat_bits % static_cast<uintptr_t>(kPairColumns * size_of(type)) == 0;
}

// None for sizes that kernels do not take.
std::optional<PairShape> shape_of(const PairAttentionArgs& call) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max() / static_cast<int64_t>(sizeof(float));
  if (call.type == DType::kDouble || call.heads <= 0 || call.heads > most || call.dim <= 0 ||
      call.dim > most / call.heads) {
    return std::nullopt;
  }
  const auto widest = static_cast<int>(kMaxAccessBytes / size_of(call.type));
  PairShape shape{call.heads, call.dim, call.type, widest, call.dim > int64_t{kWarpSize} * widest ? 4 : 1, false};
  // Whole vectors, if registers hold a head of them. Otherwise single elements, of heads of any width.
  const bool has_vectors = call.dim % widest == 0 && address_bits(call) % kMaxAccessBytes == 0;
  if (!has_vectors || call.dim > shape.covered()) {
    shape.vector = 1;
    shape.repeat = 4;
  }
  shape.tiled = call.dim > shape.covered();
  if (call.edge.any() && (shape.vector != widest || shape.repeat > 1 || !fits_columns(call.edge, call.type))) {
    return std::nullopt;
  }
  return shape;
}

// ---- What a pass is given.

RowWork work_of(const PairAttentionArgs& call, PairPass pass) {
  const bool is_dot = call.score == PairScore::kDot;
  if (!call.edge.any()) return is_dot ? kDotAttentionWork[0] : kGatv2Work[0];
  const int of = pass == PairPass::kForward ? 0 : pass == PairPass::kRecordingDestinations ? 1 : 2;
  if (call.edge.feat != nullptr && is_dot) return kDotColumnsWork[of];
  return is_dot ? kDotBiasWork[of] : kGatv2BiasWork[of];
}

// All that does not depend on the pass, and how it is divided among warps. `num_columns`: nodes that rows are gathered
// of.
PairArgs pass_of(const PairAttentionArgs& call, PairPass pass, const PairShape& shape, const Topology& topology,
                 int64_t num_columns) {
  const int gathered_rows = rows_per_edge(call.score, pass);
  const bool has_terms = call.edge.any() && pass != PairPass::kRecordedSources;
  const int log2_unroll = log2_ceil(pair_unroll(shape.lane_bytes(), shape.repeat, gathered_rows, has_terms));
  const Gathered gathered{num_columns, shape.row_elements() * size_of(shape.type) * gathered_rows, topology.num_edges};
  PairArgs args{};
  HeadShape heads{shape.heads, shape.dim / shape.vector, shape.repeat, kLog2Warp - log2_unroll};
  const bool has_weight = has_terms && call.edge.weight != nullptr;
  if (has_terms && call.edge.feat != nullptr && !has_weight) {
    heads.least_log2_lanes = log2_ceil(call.edge.feat_dim / kPairColumns);
  }
  args.layout = layout_of_whole_heads(current_device(), heads, gathered, topology.num_rows, work_of(call, pass));
  args.units = row_units_of(topology, args.layout.slices);
  args.columns = indices_of(topology);
  args.edge_ids = edge_ids_of(topology);
  args.row_elements = static_cast<uint32_t>(shape.row_elements());
  args.blocks_per_slice = static_cast<uint32_t>(ceil_div(args.units.num_units, pair_warps(has_weight)));
  args.dropout = mask_of(call.dropout);
  args.logit = logit_of(call);
  return args;
}

// Without the columns' results.
PairEdgeArgs edge_args_of(const EdgeTerms& terms) {
  PairColumnArgs columns{};
  columns.feat = terms.feat;
  columns.weight = terms.weight;
  columns.query = static_cast<const float*>(terms.query);
  columns.grad = static_cast<const float*>(terms.grad_out);
  columns.count = static_cast<uint32_t>(terms.feat_dim);
  return {terms.bias,
          terms.key,
          terms.value,
          terms.grad_bias,
          terms.grad_key,
          terms.grad_value,
          terms.bias_type == DType::kFloat,
          columns};
}

// The sums of columns that a pass writes. `wide`: what it writes in fp32, if it does.
void set_column_results(PairArgs& pass, const PairShape& shape, void* sums, void* wide, Workspace& workspace) {
  PairColumnArgs& columns = pass.edge.columns;
  columns.sums = static_cast<float*>(sums);
  columns.wide = static_cast<float*>(wide);
  if (sums == nullptr) return;
  columns.partial_sums = workspace.take<float>(pass.units.rows.num_slots * shape.heads * columns.count);
}

// The columns' parts of logits, for a pass over destinations, where they come in two: PairConfig::kSplits.
void take_key_logits(const PairAttentionArgs& call, const PairShape& shape, int64_t num_src, PairArgs& pass,
                     Workspace& workspace) {
  const bool adds_to_keys = call.edge.key != nullptr || call.edge.weight != nullptr;
  if (!adds_to_keys && splits_logits(call.score, size_of(shape.type), shape.repeat)) {
    pass.key_logits = workspace.take<float>(num_src * shape.heads);
  }
}
cudaError_t fill_key_logits(const PairArgs& pass, const PairShape& shape, int64_t num_src, const Launch& launch) {
  if (pass.key_logits == nullptr) return cudaSuccess;
  HeadLogitsArgs args{pass.key, shape.type, num_src, shape.heads, shape.dim};
  args.attn[0] = pass.logit.attn;
  args.logits[0] = pass.key_logits;
  return scaled_head_logits(args, pass.logit.linear, launch);
}

// Elements of PairArgs::dots, `per_head` for each edge and head; 0 without tiles.
int64_t num_dots(const PairAttentionArgs& call, const PairShape& shape, int per_head) {
  return shape.tiled ? call.topology.num_edges * shape.heads * per_head : 0;
}

// A row for each slot.
int64_t num_partials(const PairArgs& pass, const PairShape& shape) {
  return pass.units.rows.num_slots * shape.row_elements();
}

// Blocks that each have a weight in shared memory take rows by turns.
void limit_blocks(PairArgs& pass) {
  constexpr int64_t kMaxBlocks = 1 << 12;
  const int64_t blocks = std::max(kMaxBlocks / pass.layout.slices, int64_t{1});
  pass.blocks_per_slice = static_cast<uint32_t>(std::min<int64_t>(pass.blocks_per_slice, blocks));
}

struct Forward {
  PairArgs pass;

  Forward(const PairAttentionArgs& call, const PairShape& shape, Workspace& workspace)
      : pass(pass_of(call, PairPass::kForward, shape, call.topology, call.num_src)) {
    pass.partials = take_partials(workspace, pass.units.rows, shape.heads, shape.dim, 1);
    pass.dots = workspace.take<float>(num_dots(call, shape, 1));
    take_key_logits(call, shape, call.num_src, pass, workspace);
    pass.own_key = call.query;
    pass.key = call.key;
    pass.value = call.value;
    pass.out = call.out;
    pass.lse = static_cast<float*>(call.lse);
    pass.edge = edge_args_of(call.edge);
    set_column_results(pass, shape, call.edge.out, call.edge.wide_out, workspace);
    if (call.edge.weight != nullptr) limit_blocks(pass);
  }
};

// Limits the blocks of a pass that leaves products, and says how many rows of products they leave. Blocks take rows by
// turns then: there are few enough for a small workspace, and enough for an even load.
int64_t limit_products(const PairShape& shape, PairArgs& pass) {
  constexpr int64_t kMaxElements = 1 << 21, kMaxBlocks = 1 << 14, kMinBlocks = 1 << 12;
  const int64_t slices = pass.layout.slices, most = std::min(kMaxElements / shape.row_elements(), kMaxBlocks / slices);
  const int64_t blocks = std::max(most, ceil_div(kMinBlocks, slices));
  pass.blocks_per_slice = static_cast<uint32_t>(std::min<int64_t>(pass.blocks_per_slice, blocks));
  return pass.blocks_per_slice;
}

// In the memory that `workspace` has for them, if there are to be any.
EdgeRecords take_edge_records(const PairAttentionArgs& call, const PairShape& shape, Workspace& workspace) {
  const int64_t num_edges = call.topology.num_edges, vectors = shape.dim / shape.vector;
  const bool is_gatv2 = call.score == PairScore::kLeaky;
  EdgeRecordLayout layout{};
  if (call.edge.any()) {
    layout = plan_term_records(shape.heads, vectors, is_gatv2);
  } else if (is_gatv2 && shape.repeat == 1) {
    layout = plan_edge_records(current_device(), num_edges, shape.heads, vectors);
    if (layout.bytes > 0 && !takes_edge_records(shape, call.topology, call.by_src, layout.bytes)) layout = {};
  }
  return {workspace.take<char>(num_edges * layout.bytes), static_cast<uint32_t>(layout.bytes),
          static_cast<uint32_t>(layout.signs_at)};
}

struct Backward {
  EdgeRecords edge_records;  // first: whole sectors
  bool is_recorded;
  DestinationRecord* records;
  PairArgs destinations, sources;
  double* partial_products;
  float* products;
  int64_t product_rows;
  ProjectionGradientArgs projection;  // of columns

  Backward(const PairAttentionArgs& call, const PairShape& shape, Workspace& workspace)
      : edge_records(take_edge_records(call, shape, workspace)),
        is_recorded(edge_records.bytes > 0),
        records(workspace.take<DestinationRecord>(call.topology.num_rows * shape.heads)),
        destinations(pass_of(call, destination_pass(), shape, call.topology, call.by_src.num_rows)),
        sources(pass_of(call, source_pass(), shape, call.by_src, call.topology.num_rows)),
        partial_products(nullptr),
        products(nullptr),
        product_rows(0),
        projection{} {
    take_key_logits(call, shape, call.by_src.num_rows, destinations, workspace);
    if (call.score == PairScore::kLeaky) take_products(call, shape, workspace);
    if (call.edge.weight != nullptr) take_projection(call, shape, workspace);
    float* dots = workspace.take<float>(num_dots(call, shape, 2));
    for (PairArgs* pass : {&destinations, &sources}) {
      pass->partial_key = workspace.take<float>(num_partials(*pass, shape));
      pass->dots = dots;
      pass->records = records;
      pass->edge_records = edge_records;
    }
    destinations.out = call.out;
    destinations.lse = static_cast<float*>(call.lse);
    destinations.own_key = call.query;
    destinations.own_value = sources.value = call.grad;
    sources.key = is_recorded && call.score == PairScore::kLeaky ? call.grad : call.query;  // the one row of an edge
    destinations.key = sources.own_key = call.key;
    destinations.value = sources.own_value = call.value;
    destinations.grad_key = call.grad_query;
    destinations.edge = edge_args_of(call.edge);
    set_column_results(destinations, shape, call.edge.grad_query,
                       call.edge.query != nullptr ? call.grad_query : nullptr, workspace);
    sources.grad_key = call.grad_key;
    sources.grad_value = call.grad_value;
    if (sources.grad_value != nullptr) sources.partial_value = workspace.take<float>(num_partials(sources, shape));
  }

  PairPass destination_pass() const { return is_recorded ? PairPass::kRecordingDestinations : PairPass::kDestinations; }
  PairPass source_pass() const { return is_recorded ? PairPass::kRecordedSources : PairPass::kSources; }

 private:
  void take_products(const PairAttentionArgs& call, const PairShape& shape, Workspace& workspace) {
    const int64_t of_destinations = limit_products(shape, destinations);
    product_rows = of_destinations + limit_products(shape, sources) + (call.edge.weight != nullptr ? 1 : 0);
    partial_products = workspace.take<double>(kProductShares * shape.row_elements());
    products = workspace.take<float>(product_rows * shape.row_elements());
    if (products == nullptr) return;
    destinations.products = products;
    sources.products = products + of_destinations * shape.row_elements();
  }
  void take_projection(const PairAttentionArgs& call, const PairShape& shape, Workspace& workspace) {
    constexpr int64_t kMaxElements = 1 << 20, kMaxPartials = 1 << 10, kLeastEdges = 1 << 8;
    const EdgeTerms& terms = call.edge;
    const int64_t num_edges = call.topology.num_edges, elements = shape.row_elements() * terms.feat_dim;
    const int64_t most = std::clamp(kMaxElements / elements, int64_t{1}, kMaxPartials);
    projection.records = edge_records;
    projection.num_edges = num_edges;
    projection.heads = static_cast<int32_t>(shape.heads);
    projection.vectors = static_cast<int32_t>(shape.dim / shape.vector);
    projection.columns = static_cast<int32_t>(terms.feat_dim);
    projection.slope = static_cast<float>(call.factor);
    projection.feat = terms.feat;
    projection.attn = call.attn;
    projection.weight = terms.weight;
    projection.grad_feat = terms.grad_feat;
    projection.grad_weight = terms.grad_weight;
    projection.num_partials = std::min(most, ceil_div(num_edges, kLeastEdges));
    projection.partial_sums = workspace.take<float>(projection.num_partials * elements);
    projection.sums = workspace.take<float>(elements);
    if (products != nullptr) projection.products = products + (product_rows - 1) * shape.row_elements();
  }
};

// ---- The passes.

// Results of long rows, from those of their pieces.
cudaError_t combine_results(const PairArgs& args, const PairShape& shape, const Launch& launch) {
  AttentionCombineArgs combined{};
  combined.rows = args.units.rows;
  combined.partials = args.partials;
  combined.heads = shape.heads;
  combined.dim = shape.dim;
  const PairColumnArgs& columns = args.edge.columns;
  combined.type = columns.wide != nullptr ? DType::kFloat : shape.type;
  combined.out = columns.wide != nullptr ? Precise{columns.wide, nullptr} : args.out;
  combined.lse = args.lse;
  const cudaError_t status = combine_attention(combined, launch);
  if (status != cudaSuccess || columns.sums == nullptr) return status;
  combined.partials.vectors = columns.partial_sums;
  combined.dim = columns.count;
  combined.type = DType::kFloat;
  combined.out = {columns.sums, nullptr};
  combined.lse = nullptr;
  return combine_attention(combined, launch);
}

// Gradients of long rows, from those of their pieces.
cudaError_t combine_gradients(const PairArgs& args, const PairShape& shape, const Launch& launch) {
  const auto combine_rows = [&](float* partial, int64_t len, void* gradient, DType type) {
    return combine({args.units.rows, partial, len, 1.f, false, gradient, type}, launch);
  };
  const PairColumnArgs& columns = args.edge.columns;
  const bool is_wide = columns.wide != nullptr;
  cudaError_t status = combine_rows(args.partial_key, shape.row_elements(), is_wide ? columns.wide : args.grad_key,
                                    is_wide ? DType::kFloat : shape.type);
  if (status == cudaSuccess && args.grad_value != nullptr) {
    status = combine_rows(args.partial_value, shape.row_elements(), args.grad_value, shape.type);
  }
  if (status == cudaSuccess && columns.sums != nullptr) {
    status = combine_rows(columns.partial_sums, shape.heads * columns.count, columns.sums, DType::kFloat);
  }
  return status;
}

cudaError_t run_backward_pass(PairScore score, PairPass pass, const PairArgs& args, const PairShape& shape,
                              const Launch& launch) {
  const cudaError_t status = run_pass(score, pass, args, shape, launch);
  return status == cudaSuccess ? combine_gradients(args, shape, launch) : status;
}

}  // namespace

// Columns: no more than a warp takes for a head, or than a product has.
const EdgeTermLimits kEdgeTermLimits{/*head_bytes=*/kWarpSize * kMaxAccessBytes,
                                     /*dot_columns=*/kWarpSize * kPairColumns,
                                     /*leaky_columns=*/kMaxProjected,
                                     /*columns_beside_rows=*/false,
                                     /*half_columns_capability=*/kTensorCoresMajor,
                                     /*row_bytes=*/kMaxAccessBytes,
                                     /*row_columns=*/kPairColumns};

bool has_edge_terms(const EdgeTerms& terms, DType type, int64_t dim) {
  if (type == DType::kDouble || dim * size_of(type) > kEdgeTermLimits.head_bytes) return false;
  if (terms.feat == nullptr) return true;
  if (terms.key != nullptr || terms.value != nullptr) return false;
  if (terms.weight == nullptr) return terms.feat_dim <= kEdgeTermLimits.dot_columns;
  return terms.feat_dim <= kEdgeTermLimits.leaky_columns && (size_of(type) != 2 || has_tensor_cores());
}

size_t pair_attention_workspace(const PairAttentionArgs& call) {
  if (takes_phases(call)) return dot_attention_in_phases_workspace(call);
  Workspace workspace(nullptr);
  if (const auto shape = shape_of(call)) Forward(call, *shape, workspace);
  return workspace.bytes();
}

cudaError_t pair_attention(const PairAttentionArgs& call, const Launch& launch) {
  if (takes_phases(call)) return dot_attention_in_phases(call, launch);
  const auto shape = shape_of(call);
  if (!shape) return cudaErrorInvalidValue;
  Workspace workspace(launch.workspace);
  const Forward forward(call, *shape, workspace);
  cudaError_t status = fill_key_logits(forward.pass, *shape, call.num_src, launch);
  if (status == cudaSuccess) status = run_pass(call.score, PairPass::kForward, forward.pass, *shape, launch);
  return status == cudaSuccess ? combine_results(forward.pass, *shape, launch) : status;
}

size_t pair_attention_backward_workspace(const PairAttentionArgs& call) {
  if (backward_takes_phases(call)) return dot_attention_backward_in_phases_workspace(call);
  Workspace workspace(nullptr);
  if (const auto shape = shape_of(call)) Backward(call, *shape, workspace);
  return workspace.bytes();
}

cudaError_t pair_attention_backward(const PairAttentionArgs& call, const Launch& launch) {
  if (backward_takes_phases(call)) return dot_attention_backward_in_phases(call, launch);
  const auto shape = shape_of(call);
  if (!shape) return cudaErrorInvalidValue;
  Workspace workspace(launch.workspace);
  const Backward backward(call, *shape, workspace);
  cudaError_t status = fill_key_logits(backward.destinations, *shape, call.by_src.num_rows, launch);
  if (status == cudaSuccess) {
    status = run_backward_pass(call.score, backward.destination_pass(), backward.destinations, *shape, launch);
  }
  if (status == cudaSuccess) {
    status = run_backward_pass(call.score, backward.source_pass(), backward.sources, *shape, launch);
  }
  if (status == cudaSuccess && (call.edge.grad_feat != nullptr || call.edge.weight != nullptr)) {
    status = with_type(shape->type, [&](auto t) {
      using T = TypeOf<decltype(t)>;
      return call.edge.weight != nullptr ? projected_gradients_of<T>(backward.projection, launch)
                                         : column_gradients_of<T>(backward.destinations, call.edge.grad_feat, launch);
    });
  }
  if (status != cudaSuccess || call.score != PairScore::kLeaky) return status;
  return sum_products({backward.products, backward.product_rows, shape->row_elements(), call.grad_attn, shape->type,
                       backward.partial_products},
                      launch);
}

}  // namespace halfgnn::cuda
