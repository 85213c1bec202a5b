#include "attention.h"

#include <algorithm>
#include <utility>

#include "kernels/choose.h"
#include "threads.h"
#include "workspace.h"

namespace halfgnn {
namespace {

// Elements touched per edge: its rows, and exponentials.
int64_t work_per_edge(int64_t heads, int64_t dim) { return 2 * heads * dim + 16 * heads; }

PairPass pair_pass(const Gatv2Args& args) {
  PairPass pass;
  pass.topology = args.topology;
  pass.heads = args.heads;
  pass.dim = args.dim;
  pass.type = args.type;
  pass.dropout = args.dropout;
  pass.row_score = args.feat_dst;
  pass.col_score = args.feat_src;
  pass.col_value = args.feat_src;
  pass.attn = args.attn;
  pass.slope = args.negative_slope;
  pass.edge = args.edge;
  pass.out = args.out;
  pass.lse = args.lse;
  return pass;
}

PairPass pair_pass(const DotAttentionArgs& args) {
  PairPass pass;
  pass.topology = args.topology;
  pass.heads = args.heads;
  pass.dim = args.dim;
  pass.type = args.type;
  pass.dropout = args.dropout;
  pass.row_score = args.query;
  pass.col_score = args.key;
  pass.col_value = args.value;
  pass.scale = args.scale;
  pass.edge = args.edge;
  pass.out = args.out;
  pass.lse = args.lse;
  return pass;
}

void pair_forward(const PairPass& pass) {
  for_rows(pass.topology, work_per_edge(pass.heads, pass.dim),
           [&](int64_t begin, int64_t end) { kernels().pair.forward(pass, begin, end); });
}

// The records of the destinations that both passes of a backward read.
template <class Args>
Workspace pair_records(const Args& args) {
  const int64_t num_dst = args.topology.num_rows;
  Workspace records(args.type, num_dst * kPairRecord * args.heads);
  const PairNodes nodes{args.heads, args.dim, args.type, args.out, args.grad, args.lse, records.get()};
  for_items(num_dst, 2 * args.heads * args.dim,
            [&](int64_t begin, int64_t end) { kernels().pair.nodes(nodes, begin, end); });
  return records;
}

// The most values of all partial sums of the gradient of a weight: 64 MB of fp32.
constexpr int64_t kMostPartials = 1 << 24;

// A pass over CSC, then one over CSR: what rows and columns stand for is exchanged.
PairPass by_destination(PairPass pass, const void* grad) {
  pass.row_value = grad;
  return pass;
}
PairPass by_source(const PairPass& csc, const Topology& csr) {
  PairPass pass = csc;
  pass.topology = csr;
  pass.by_src = true;
  std::swap(pass.row_score, pass.col_score);
  std::swap(pass.row_value, pass.col_value);
  pass.edge.grad_bias = pass.edge.grad_key = pass.edge.grad_feat = nullptr;  // which the other pass makes
  return pass;
}

// Records of edges, from the pass over destinations to that over sources; empty without terms of edges.
template <class Args>
Workspace edge_records_of(const Args& args, bool has_signs) {
  const int64_t len = edge_record_len(args.heads, args.dim, has_signs);
  return Workspace(args.type, args.edge.any() ? args.topology.num_edges * len : 0);
}

}  // namespace

namespace cpu {

void gat_attention(const GatArgs& args) {
  if (args.heads == 0) return;
  GatPass pass{args};
  pass.attn_src = args.attn_src;
  const bool widen = args.logit_type == DType::kHalf || args.logit_type == DType::kBFloat16;
  const int64_t values = args.num_cols * args.heads;
  Workspace attn_src(args.type, widen ? values : 0);
  if (widen) {
    for_items(values, 1, [&](int64_t begin, int64_t end) {
      kernels().gat.widen(args.logit_type, args.attn_src, attn_src.get(), begin, end);
    });
    pass.attn_src = attn_src.get();
  }
  for_rows(args.topology, work_per_edge(args.heads, args.dim),
           [&](int64_t begin, int64_t end) { kernels().gat.forward(pass, begin, end); });
}

void gat_attention_backward(const GatArgs& args) {
  if (args.heads == 0) return;
  Workspace records(args.type, args.num_cols * kGatRecord * args.heads);
  GatPass pass{args};
  pass.records = records.get();
  for_items(args.num_cols, 4 * args.heads * args.dim,
            [&](int64_t begin, int64_t end) { kernels().gat.nodes(pass, begin, end); });
  for_rows(args.topology, work_per_edge(args.heads, args.dim),
           [&](int64_t begin, int64_t end) { kernels().gat.backward(pass, begin, end); });
}

void gatv2_attention(const Gatv2Args& args) {
  if (args.heads == 0) return;
  pair_forward(pair_pass(args));
}

void gatv2_attention_backward(const Gatv2Args& args) {
  if (args.heads == 0) return;
  const Workspace records = pair_records(args);
  const Workspace edge_records = edge_records_of(args, true);
  PairPass by_dst = by_destination(pair_pass(args), args.grad);
  by_dst.records = records.get();
  by_dst.edge_records = edge_records.get();
  PairPass by_src = by_source(by_dst, args.by_src);
  by_dst.grad_score = args.grad_feat_dst;
  by_src.grad_score = args.grad_feat_src;

  // The gradient of attn is summed over all rows of both passes, and that of edge.weight over those of the first, in
  // pieces that are added in order. The number of pieces depends on the graph and the sizes alone.
  const int64_t len = args.heads * args.dim, weight_len = args.edge.grad_weight ? len * args.edge.feat_dim : 0;
  const int64_t most = std::max<int64_t>(1, kMostPartials / std::max<int64_t>(1, weight_len));
  const int64_t dst_pieces = std::min(fixed_pieces(by_dst.topology), most), src_pieces = fixed_pieces(by_src.topology);
  Workspace parts(args.type, (dst_pieces + src_pieces) * len), weight_parts(args.type, dst_pieces * weight_len);
  const auto part_of = [&](const Workspace& of, int64_t index, int64_t values) {
    return static_cast<char*>(of.get()) + index * values * size_of_accumulator(args.type);
  };
  auto run = [&](const PairPass& pass, int64_t pieces, int64_t first_part) {
    for_pieces(pass.topology, pieces, [&](int64_t piece, int64_t begin, int64_t end) {
      PairPass part = pass;
      part.partial_attn = part_of(parts, first_part + piece, len);
      if (weight_len > 0 && !pass.by_src) part.partial_weight = part_of(weight_parts, piece, weight_len);
      kernels().pair.backward(part, begin, end);
    });
  };
  run(by_dst, dst_pieces, 0);
  run(by_src, src_pieces, dst_pieces);
  kernels().pair.add_parts(parts.get(), dst_pieces + src_pieces, len, args.type, args.grad_attn);
  if (weight_len > 0)
    kernels().pair.add_parts(weight_parts.get(), dst_pieces, weight_len, args.type, args.edge.grad_weight);
}

void dot_attention(const DotAttentionArgs& args) {
  if (args.heads == 0) return;
  pair_forward(pair_pass(args));
}

void dot_attention_backward(const DotAttentionArgs& args) {
  if (args.heads == 0) return;
  const Workspace records = pair_records(args);
  const Workspace edge_records = edge_records_of(args, false);
  PairPass by_dst = by_destination(pair_pass(args), args.grad);
  by_dst.records = records.get();
  by_dst.edge_records = edge_records.get();
  PairPass by_src = by_source(by_dst, args.by_src);
  by_dst.grad_score = args.grad_query;
  by_src.grad_score = args.grad_key;
  by_src.grad_value = args.grad_value;
  for (const PairPass* pass : {&by_dst, &by_src})
    for_rows(pass->topology, 2 * work_per_edge(args.heads, args.dim),
             [&](int64_t begin, int64_t end) { kernels().pair.backward(*pass, begin, end); });
}

}  // namespace cpu
}  // namespace halfgnn
