#include "attention.h"

#include <algorithm>

#include "kernels/choose.h"
#include "threads.h"
#include "workspace.h"

namespace halfgnn {
namespace {

// Elements touched per edge: its rows, and exponentials.
int64_t work_per_edge(int64_t heads, int64_t dim) { return 2 * heads * dim + 16 * heads; }

// The records of the destinations that both passes of a backward read.
Workspace pair_records(const PairAttentionArgs& args) {
  const int64_t num_dst = args.topology.num_rows;
  Workspace records(args.type, num_dst * kPairRecord * args.heads);
  const PairNodes nodes{args.heads, args.dim, args.type, args.out, args.grad, args.lse, records.get()};
  for_items(num_dst, 2 * args.heads * args.dim,
            [&](int64_t begin, int64_t end) { kernels().pair.nodes(nodes, begin, end); });
  return records;
}

// The most values of all partial sums of the gradient of a weight: 64 MB of fp32.
constexpr int64_t kMostPartials = 1 << 24;

// Both passes of a backward of kLeaky. The gradient of attn is summed over all rows of both passes, and that of
// edge.weight over those of the first, in pieces that are added in order. The number of pieces depends on the graph and
// the sizes alone.
void backward_in_pieces(const PairPass& by_dst, const PairPass& by_src) {
  const PairAttentionArgs& args = by_dst.args;
  const int64_t len = args.heads * args.dim, weight_len = args.edge.grad_weight ? len * args.edge.feat_dim : 0;
  const int64_t most = std::max<int64_t>(1, kMostPartials / std::max<int64_t>(1, weight_len));
  const int64_t dst_pieces = std::min(fixed_pieces(args.topology), most), src_pieces = fixed_pieces(args.by_src);
  Workspace parts(args.type, (dst_pieces + src_pieces) * len), weight_parts(args.type, dst_pieces * weight_len);
  const auto part_of = [&](const Workspace& of, int64_t index, int64_t values) {
    return static_cast<char*>(of.get()) + index * values * size_of_accumulator(args.type);
  };
  auto run = [&](const PairPass& pass, int64_t pieces, int64_t first_part) {
    for_pieces(pass.topology(), pieces, [&](int64_t piece, int64_t begin, int64_t end) {
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

void pair_attention(const PairAttentionArgs& args) {
  if (args.heads == 0) return;
  const PairPass pass{args};
  for_rows(args.topology, work_per_edge(args.heads, args.dim),
           [&](int64_t begin, int64_t end) { kernels().pair.forward(pass, begin, end); });
}

// A pass over CSC, then one over CSR.
void pair_attention_backward(const PairAttentionArgs& args) {
  if (args.heads == 0) return;
  const Workspace records = pair_records(args);
  // Of edges, from the one pass to the other; none without terms of edges.
  const Workspace edge_records(args.type, args.edge.any() ? args.topology.num_edges * edge_record_len(args) : 0);
  PairPass by_dst{args}, by_src{args, true};
  for (PairPass* pass : {&by_dst, &by_src}) {
    pass->records = records.get();
    pass->edge_records = edge_records.get();
  }
  if (args.score == PairScore::kLeaky) return backward_in_pieces(by_dst, by_src);
  for (const PairPass* pass : {&by_dst, &by_src})
    for_rows(pass->topology(), 2 * work_per_edge(args.heads, args.dim),
             [&](int64_t begin, int64_t end) { kernels().pair.backward(*pass, begin, end); });
}

}  // namespace cpu
}  // namespace halfgnn
