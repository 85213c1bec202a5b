#include "attention.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "kernels/attention_table.h"
#include "threads.h"

namespace halfgnn {
namespace {

// Uninitialised values of Acc, aligned to cache lines.
class Workspace {
 public:
  Workspace(DType type, int64_t values)
      : bytes_(std::max<int64_t>(values, 1) * (type == DType::kDouble ? 8 : 4)),
        data_(std::aligned_alloc(kLine, static_cast<size_t>((bytes_ + kLine - 1) / kLine * kLine))) {
    if (!data_) throw std::bad_alloc();
  }
  void* get() const { return data_.get(); }

 private:
  static constexpr int64_t kLine = 64;
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  int64_t bytes_;
  std::unique_ptr<void, Free> data_;
};

// kernel(begin, end) over n items of `elements` each.
template <class Kernel>
void for_items(int64_t n, int64_t elements, const Kernel& kernel) {
  constexpr int64_t kGrainElements = 1 << 15;
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(elements, 1));
  at::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) { kernel(begin, end); });
}

// Elements touched in an edge: its rows, and exponentials.
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
  pass.out = args.out;
  pass.lse = args.lse;
  return pass;
}

void pair_forward(const PairPass& pass) {
  for_rows(pass.topology, work_per_edge(pass.heads, pass.dim),
           [&](int64_t begin, int64_t end) { attention_kernels().pair_forward(pass, begin, end); });
}

// The records of the destinations that both passes of a backward read.
template <class Args>
Workspace pair_records(const Args& args) {
  const int64_t num_dst = args.topology.num_rows;
  Workspace records(args.type, num_dst * kPairRecord * args.heads);
  const PairNodes nodes{args.heads, args.dim, args.type, args.out, args.grad, args.lse, records.get()};
  for_items(num_dst, 2 * args.heads * args.dim,
            [&](int64_t begin, int64_t end) { attention_kernels().pair_nodes(nodes, begin, end); });
  return records;
}

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
  return pass;
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
      attention_kernels().widen(args.logit_type, args.attn_src, attn_src.get(), begin, end);
    });
    pass.attn_src = attn_src.get();
  }
  for_rows(args.topology, work_per_edge(args.heads, args.dim),
           [&](int64_t begin, int64_t end) { attention_kernels().gat_forward(pass, begin, end); });
}

void gat_attention_backward(const GatArgs& args) {
  if (args.heads == 0) return;
  Workspace records(args.type, args.num_cols * kGatRecord * args.heads);
  GatPass pass{args};
  pass.records = records.get();
  for_items(args.num_cols, 4 * args.heads * args.dim,
            [&](int64_t begin, int64_t end) { attention_kernels().gat_nodes(pass, begin, end); });
  for_rows(args.topology, work_per_edge(args.heads, args.dim),
           [&](int64_t begin, int64_t end) { attention_kernels().gat_backward(pass, begin, end); });
}

void gatv2_attention(const Gatv2Args& args) {
  if (args.heads == 0) return;
  pair_forward(pair_pass(args));
}

void gatv2_attention_backward(const Gatv2Args& args) {
  if (args.heads == 0) return;
  const Workspace records = pair_records(args);
  PairPass by_dst = by_destination(pair_pass(args), args.grad);
  by_dst.records = records.get();
  PairPass by_src = by_source(by_dst, args.by_src);
  by_dst.grad_score = args.grad_feat_dst;
  by_src.grad_score = args.grad_feat_src;

  // The gradient of attn is summed over all rows of both passes: in pieces whose number depends on the graph alone,
  // which are added in order.
  const int64_t len = args.heads * args.dim;
  const int64_t dst_pieces = fixed_pieces(by_dst.topology), src_pieces = fixed_pieces(by_src.topology);
  Workspace parts(args.type, (dst_pieces + src_pieces) * len);
  const int64_t part_bytes = len * (args.type == DType::kDouble ? 8 : 4);
  auto run = [&](const PairPass& pass, int64_t pieces, int64_t first_part) {
    for_pieces(pass.topology, pieces, [&](int64_t piece, int64_t begin, int64_t end) {
      PairPass part = pass;
      part.partial_attn = static_cast<char*>(parts.get()) + (first_part + piece) * part_bytes;
      attention_kernels().pair_backward(part, begin, end);
    });
  };
  run(by_dst, dst_pieces, 0);
  run(by_src, src_pieces, dst_pieces);
  attention_kernels().add_parts(parts.get(), dst_pieces + src_pieces, len, args.type, args.grad_attn);
}

void dot_attention(const DotAttentionArgs& args) {
  if (args.heads == 0) return;
  pair_forward(pair_pass(args));
}

void dot_attention_backward(const DotAttentionArgs& args) {
  if (args.heads == 0) return;
  const Workspace records = pair_records(args);
  PairPass by_dst = by_destination(pair_pass(args), args.grad);
  by_dst.records = records.get();
  PairPass by_src = by_source(by_dst, args.by_src);
  by_dst.grad_score = args.grad_query;
  by_src.grad_score = args.grad_key;
  by_src.grad_value = args.grad_value;
  for (const PairPass* pass : {&by_dst, &by_src})
    for_rows(pass->topology, 2 * work_per_edge(args.heads, args.dim),
             [&](int64_t begin, int64_t end) { attention_kernels().pair_backward(*pass, begin, end); });
}

}  // namespace cpu
}  // namespace halfgnn
