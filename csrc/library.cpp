// Every operator schema of halfgnn, and the dispatch keys for which csrc/ops has kernels: those of the back ends of
// this build. Fake kernels, autograd and autocast are in halfgnn/ops, and so are the kernels of edge_network.
//
// Topology arguments. `indptr` (rows + 1), `indices` (E) and `edge_ids` (E, absent when edge data is already stored in
// this order) are a compressed adjacency, int32 or int64. CSC: rows are destinations, indices are sources. CSR: rows
// are sources, indices are destinations. An operator that takes either is told by `by_src`, which is true for CSR.
// short_rows: the caller says that no row of it has 512 edges or more, which saves launches on CUDA. If that is wrong,
// results are right and come late. schedule: the order in which sums, maxima and GAT on CUDA walk its rows
// (halfgnn/row_schedule.py), which does not change results. Sizes and dtypes are checked. What the tensors hold is
// trusted, because halfgnn.Graph has validated it.
//
// Feature arguments. lhs, rhs and gradients have one row per node or edge and any trailing shape. Trailing shapes
// broadcast, aligned on the right. Types: fp16, bf16, fp32 (fp64 on the CPU); everything between load and store is
// fp32 (fp64 for fp64).

#include "ops/register.h"

HALFGNN_SCHEMAS(m) {
  // Stable counting sort of an edge list by `row`: edge_ids is the permutation, indices = col[edge_ids].
  m.def("coo_to_csr(Tensor row, Tensor col, SymInt num_rows) -> (Tensor indptr, Tensor indices, Tensor edge_ids)");
  // CSC to CSR and back: the same edges, sorted by the other end. Edges of equal ends keep their order.
  m.def(
      "transpose(Tensor indptr, Tensor indices, Tensor? edge_ids, SymInt num_cols) "
      "-> (Tensor indptr, Tensor indices, Tensor edge_ids)");

  // The place of every node in an order that puts neighbours near one another: a permutation, the same for any number
  // of threads. indptr, indices: CSC; out_indptr, out_indices: CSR of the same square graph. What they hold is checked.
  // CPU only.
  m.def("reorder(Tensor indptr, Tensor indices, Tensor out_indptr, Tensor out_indices) -> Tensor");
  // (2,) int64: of gathers of rows in the order of indices, how many find their row among the last `window` different
  // rows, and how many were counted. Ids are checked. CPU only.
  m.def("locality(Tensor indices, SymInt num_cols, int window) -> Tensor");

  // Neighbours of seeds, sampled hop by hop over the in-edges (CSC) of every relation. One entry per relation: indptr,
  // indices, edge_ids, src_types, dst_types, edge_weight, edge_time; per type of nodes: seeds, node_time; per hop and
  // relation: fanouts, below 0 for all edges. A row's random numbers depend on seed, hop, relation, node and tree
  // alone, so the sample is the same for any number of threads. Edges of weight 0 are never sampled. blocks: a hop
  // starts at all nodes so far, otherwise at the new nodes of the last hop. disjoint: each seed has a tree and nodes of
  // its own. With times, edges later than the tree's seed_time are left out, and of latest the others but the last
  // ones; edges of a row are in the order of times. nodes, and their trees if disjoint: per type, in the order of their
  // first appearance, seeds first. offsets, sources (both int32, local ids) and edges: per hop and relation, in CSC
  // order, of the rows that the hop starts at. num_nodes (hops + 1, types): nodes known before each hop, and in the
  // end. Ids of seeds and the rows that are read are checked. CPU only.
  m.def(
      "neighbor_sample(Tensor[] indptr, Tensor[] indices, Tensor?[] edge_ids, int[] src_types, int[] dst_types, "
      "Tensor[] seeds, int[] fanouts, int seed, bool replace, bool blocks, bool disjoint, Tensor?[] edge_weight, "
      "Tensor?[] node_time, Tensor?[] edge_time, Tensor? seed_time=None, bool latest=False) "
      "-> (Tensor[] nodes, Tensor[] trees, Tensor[] offsets, Tensor[] sources, Tensor[] edges, Tensor num_nodes)");

  // out[v] = reduce over in-edges e = (u, v) of op(lhs[u], rhs[e]), CSC. arg: with `save` the winning edge id of each
  // element for max and min (-1 if there is no edge), otherwise an empty tensor. It has the dtype of indptr, but is
  // int32 for copies of less than 2**31 edges.
  m.def(
      "gspmm(Tensor indptr, Tensor indices, Tensor? edge_ids, str op, str reduce, Tensor? lhs, Tensor? rhs, "
      "ScalarType? out_dtype=None, bool short_rows=False, bool save=True, Tensor? schedule=None) "
      "-> (Tensor out, Tensor arg)");
  // Gradients of gspmm. CSR (by_src) gives either gradient in one pass over out-edges; CSC gives only the gradient of
  // rhs. `in_indptr` is the CSC indptr, which mean reads. lhs and rhs are needed where the formula reads them (mul,
  // div, and max/min of them); lhs_shape and rhs_shape, lhs_dtype and rhs_dtype describe the operands themselves. A
  // gradient that is not needed is an empty tensor. If in_indices and in_edge_ids, with in_indptr the CSC, are given,
  // the gradients of a weighted sum may be made one after the other, and those of copies of which the largest were
  // taken may be added from nodes to sources, where that is taken to be faster.
  m.def(
      "gspmm_backward(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor in_indptr, bool by_src, "
      "str op, str reduce, Tensor grad, Tensor? lhs, Tensor? rhs, Tensor? arg, SymInt[] lhs_shape, SymInt[] rhs_shape, "
      "ScalarType lhs_dtype, ScalarType rhs_dtype, bool need_lhs, bool need_rhs, bool short_rows=False, "
      "Tensor? in_indices=None, Tensor? in_edge_ids=None, Tensor? schedule=None) "
      "-> (Tensor grad_lhs, Tensor grad_rhs)");

  // out[row] = the sum or mean (reduce) over the edges of op(feat[col], rhs[e]), over an edge list in any order, added
  // in that order, in fp32 (fp64 for fp64) and rounded once. op: copy_lhs, mul by rhs (E,), add or relu_add of rhs
  // (E, *), of feat's dtype. One of row and col may be None: that of edge e is e then. Ids are checked, unlike those of
  // a topology. CPU only.
  m.def("coo_sum(Tensor? row, Tensor? col, Tensor feat, Tensor? rhs, str op, str reduce, SymInt num_rows) -> Tensor");
  // feat is needed for the gradient of rhs, and both for those of relu_add. A gradient that is not needed is an empty
  // tensor.
  m.def(
      "coo_sum_backward(Tensor? row, Tensor? col, Tensor grad, Tensor? feat, Tensor? rhs, str op, str reduce, "
      "SymInt num_cols, bool need_feat, bool need_rhs) -> (Tensor grad_feat, Tensor grad_rhs)");
  // out[e] = exp(logits[e]) / their sum over the edges of row[e], column by column, over an edge list in any order, in
  // fp32 (fp64 for fp64) and rounded once. Ids are checked. CPU only.
  m.def("coo_softmax(Tensor row, Tensor logits, SymInt num_rows) -> Tensor");
  m.def("coo_softmax_backward(Tensor row, Tensor out, Tensor grad, SymInt num_rows) -> Tensor");

  // Several reductions of feat[u] over in-edges e = (u, v), CSC, in one pass where there is a kernel for it. reduces:
  // some of sum, mean, max, min, var, std with commas between them (torch.jit.trace takes no list of strings). var is
  // biased, and std is its root where it is greater than eps, 0 elsewhere. A result that was not asked for is empty.
  // save: also return what the backward reads: the winning edge ids of max and min (-1 if there is no edge, int32 where
  // all ids fit), and for var and std means and std in fp32 (fp64 for fp64).
  m.def(
      "copy_u_reduce(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor feat, str reduces, float eps, "
      "ScalarType? out_dtype=None, bool save=False, bool short_rows=False) -> (Tensor sum, Tensor mean, Tensor max, "
      "Tensor min, Tensor var, Tensor std, Tensor arg_max, Tensor arg_min, Tensor kept_mean, Tensor kept_std)");
  // Its gradient, CSR, from the gradients of the results, each of which may be absent. feat is needed for var and std;
  // feat_shape and feat_dtype describe it. in_indptr: of the CSC, whose in_indices and in_edge_ids may be given, as in
  // gspmm_backward.
  m.def(
      "copy_u_reduce_backward(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor in_indptr, Tensor? feat, "
      "SymInt[] feat_shape, ScalarType feat_dtype, Tensor? sum, Tensor? mean, Tensor? max, Tensor? min, Tensor? var, "
      "Tensor? std, Tensor? arg_max, Tensor? arg_min, Tensor? kept_mean, Tensor? kept_std, bool short_rows=False, "
      "Tensor? in_indices=None, Tensor? in_edge_ids=None) -> Tensor");

  // out[v] = the sum or mean (reduce) over in-edges e = (u, v), CSC, of weight[e] * (codes[u] - zero_point) * scale,
  // rounded once to out_dtype (fp16, bf16 or fp32). codes (num_src, *): uint8, int8, float8_e4m3fn or float8_e5m2;
  // scale and zero_point as in gather_rows, on the same device. weight: (E,), or one number per edge and head of codes;
  // fp16, bf16 or fp32. There is no derivative.
  m.def(
      "code_sum(Tensor indptr, Tensor indices, Tensor? edge_ids, str reduce, Tensor codes, Tensor scale, "
      "Tensor? zero_point, Tensor? weight, ScalarType out_dtype, bool short_rows=False) -> Tensor");

  // out[e] = op(lhs[target], rhs[target]) for every edge, CSC; targets are u, v or e. dot sums the last dimension, kept
  // as 1.
  m.def(
      "gsddmm(Tensor indptr, Tensor indices, Tensor? edge_ids, str op, Tensor? lhs, Tensor? rhs, str lhs_target, "
      "str rhs_target, ScalarType? out_dtype=None) -> Tensor");
  // Gradient of gsddmm for one operand (side: lhs or rhs) of shape `shape`: a sum over the operand's edges. The
  // topology's rows must be that operand's nodes (CSR for u, CSC for v; either for e). lhs and rhs are needed where the
  // formula reads them.
  m.def(
      "gsddmm_backward(Tensor indptr, Tensor indices, Tensor? edge_ids, bool by_src, str op, str side, Tensor grad, "
      "Tensor? lhs, Tensor? rhs, str lhs_target, str rhs_target, SymInt[] lhs_shape, SymInt[] rhs_shape, "
      "ScalarType dtype, bool short_rows=False) -> Tensor");

  // out[e] = x[u] + y[v] + z[e] for every edge, CSC: operands of one dtype and one trailing shape.
  m.def(
      "u_add_v_add_e(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor x, Tensor y, Tensor z, "
      "ScalarType? out_dtype=None) -> Tensor");

  // A network on every edge, by tiles of tile_edges edges (halfgnn/ops/edge_network, which has the kernels: they are
  // made of other operators). The sums src[u] + dst[v] + edge_weight edge_feat[e] + distance[e] position_weight go
  // through `weights`, each behind the activation, and a norm. position: where maxima are in CSC. The backward returns
  // gradients in the order of the tensors; needs: of src ... position_weight. What is not asked for is empty.
  m.def(
      "edge_network(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor? src, Tensor? dst, Tensor? edge_feat, "
      "Tensor? edge_weight, Tensor? factor, Tensor? edge_factor, Tensor? src_position, Tensor? dst_position, "
      "Tensor? position_weight, Tensor? norm_weight, Tensor? norm_bias, Tensor[] weights, Tensor?[] biases, "
      "str activation, float slope, float eps, str reduce, bool residual, bool return_edges, bool euclidean, "
      "int tile_edges) -> (Tensor out, Tensor edges, Tensor position)");
  m.def(
      "edge_network_backward(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor? src, Tensor? dst, "
      "Tensor? edge_feat, Tensor? edge_weight, Tensor? factor, Tensor? edge_factor, Tensor? src_position, "
      "Tensor? dst_position, Tensor? position_weight, Tensor? norm_weight, Tensor? norm_bias, Tensor[] weights, "
      "Tensor?[] biases, Tensor? position, Tensor? grad, Tensor? grad_edges, bool[] needs, str activation, "
      "float slope, float eps, str reduce, bool residual, bool return_edges, bool euclidean, int tile_edges) "
      "-> Tensor[]");

  // Softmax of logits (E, *) over the edges of each row, column by column.
  m.def("edge_softmax(Tensor indptr, Tensor? edge_ids, Tensor logits, bool short_rows=False) -> Tensor");
  m.def(
      "edge_softmax_backward(Tensor indptr, Tensor? edge_ids, Tensor out, Tensor grad, bool short_rows=False) "
      "-> Tensor");

  // out[s] = reduce of value[offsets[s]:offsets[s + 1]]; arg as in gspmm, positions in value.
  m.def("segment_reduce(Tensor offsets, Tensor value, str reduce) -> (Tensor out, Tensor arg)");
  m.def("segment_reduce_backward(Tensor offsets, Tensor grad, Tensor? arg, str reduce, SymInt num_rows) -> Tensor");

  // Fused attentions (csrc/core/attention.h): logits, softmax over the in-edges of each node and head, dropout,
  // weighted sum. Nothing of size E x H is kept. Features (N, H, D), logits (N, H). seed: (2,) int64, the key of the
  // random numbers of dropout; the backward takes that of the forward. save: also return what the backward reads.
  // precise: with save, also return what the rounding of out lost. A result that was not asked for is empty. The
  // forward takes CSC, gat_attention_backward takes CSR, and the other backwards take both.
  m.def(
      "gat_attention(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor feat, Tensor attn_src, Tensor attn_dst, "
      "Tensor? edge_logits, float negative_slope, float dropout_p, Tensor? seed, bool save, bool precise, "
      "bool short_rows=False, Tensor? schedule=None) "
      "-> (Tensor out, Tensor lse, Tensor out_residual, Tensor positive)");
  m.def(
      "gat_attention_backward(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor feat, Tensor attn_src, "
      "Tensor attn_dst, Tensor? edge_logits, float negative_slope, float dropout_p, Tensor? seed, Tensor grad, "
      "Tensor out, Tensor lse, Tensor out_residual, Tensor positive, bool need_edge_logits, bool short_rows=False, "
      "Tensor? schedule=None) "
      "-> (Tensor grad_feat, Tensor grad_attn_src, Tensor grad_attn_dst, Tensor grad_edge_logits)");
  // The logits of nodes, <attn[h], feat[n, h]> (N, H), of one or two attn (1, H, D), fp32 (fp64). The backward adds
  // upstream, the gradient of feat itself, to that of feat, and returns the gradients of both attn in one tensor.
  m.def("head_logits(Tensor feat, Tensor attn, Tensor? more_attn=None) -> (Tensor, Tensor)");
  m.def(
      "head_logits_backward(Tensor feat, Tensor attn, Tensor? more_attn, Tensor? grad, Tensor? more_grad, "
      "Tensor? upstream, bool need_feat, bool need_attn) -> (Tensor grad_feat, Tensor grad_attns)");
  // GATv2, and what edges add (EdgeTerms in csrc/core/attention.h): edge_bias (E, H), and inside the LeakyReLU edge_key
  // (E, H, D), or edge_feat (E, C) times edge_weight (H, D, C).
  m.def(
      "gatv2_attention(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor feat_src, Tensor feat_dst, Tensor attn, "
      "float negative_slope, float dropout_p, Tensor? seed, bool save, bool precise, bool short_rows=False, "
      "Tensor? edge_bias=None, Tensor? edge_key=None, Tensor? edge_feat=None, Tensor? edge_weight=None) "
      "-> (Tensor out, Tensor lse, Tensor out_residual)");
  m.def(
      "gatv2_attention_backward(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor out_indptr, "
      "Tensor out_indices, Tensor? out_edge_ids, Tensor feat_src, Tensor feat_dst, Tensor attn, float negative_slope, "
      "float dropout_p, Tensor? seed, Tensor grad, Tensor out, Tensor lse, Tensor out_residual, bool short_rows=False, "
      "bool out_short_rows=False, Tensor? edge_bias=None, Tensor? edge_key=None, Tensor? edge_feat=None, "
      "Tensor? edge_weight=None, bool need_edge_bias=False, bool need_edge_key=False, bool need_edge_feat=False, "
      "bool need_edge_weight=False) -> (Tensor grad_feat_src, Tensor grad_feat_dst, Tensor grad_attn, "
      "Tensor grad_edge_bias, Tensor grad_edge_key, Tensor grad_edge_feat, Tensor grad_edge_weight)");
  // Dot attention, and what edges add: edge_bias (E, H), edge_key and edge_value (E, H, D), edge_feat (E, C) with
  // edge_query (num_dst, H, C) of fp32 (fp64 with fp64 features). edge_key_is_value: edge_key is edge_value too, for
  // which None is given; its gradient is the sum. need_edge_out: also return edge_out (num_dst, H, C), the weighted sum
  // of edge_feat; out is then fp32 (fp64), as the caller adds to it before rounding. The backward takes the rounded
  // total for out, its gradient for grad, and that of edge_out for grad_edge_out. grad_query is fp32 (fp64) if
  // edge_query is given. On the CPU, edge_key_weight and edge_value_weight (H, D, C) project edge_feat: edge_query is
  // then made of query, and out and grad_query have the whole sums, rounded once. grad_edge_query is still returned, as
  // is edge_out if need_edge_out is set: the gradients of weights are made of them.
  m.def(
      "dot_attention(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor query, Tensor key, Tensor value, "
      "float scale, float dropout_p, Tensor? seed, bool save, bool precise, bool short_rows=False, "
      "Tensor? edge_bias=None, Tensor? edge_key=None, Tensor? edge_value=None, bool edge_key_is_value=False, "
      "Tensor? edge_feat=None, Tensor? edge_query=None, bool need_edge_out=False, Tensor? edge_key_weight=None, "
      "Tensor? edge_value_weight=None) -> (Tensor out, Tensor lse, Tensor out_residual, Tensor edge_out)");
  m.def(
      "dot_attention_backward(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor out_indptr, Tensor out_indices, "
      "Tensor? out_edge_ids, Tensor query, Tensor key, Tensor value, float scale, float dropout_p, Tensor? seed, "
      "Tensor grad, Tensor out, Tensor lse, Tensor out_residual, bool short_rows=False, bool out_short_rows=False, "
      "Tensor? edge_bias=None, Tensor? edge_key=None, Tensor? edge_value=None, bool edge_key_is_value=False, "
      "Tensor? edge_feat=None, Tensor? edge_query=None, Tensor? grad_edge_out=None, bool need_edge_bias=False, "
      "bool need_edge_key=False, bool need_edge_value=False, bool need_edge_feat=False, "
      "Tensor? edge_key_weight=None, Tensor? edge_value_weight=None) -> (Tensor grad_query, Tensor grad_key, Tensor "
      "grad_value, Tensor grad_edge_bias, Tensor grad_edge_key, "
      "Tensor grad_edge_value, Tensor grad_edge_feat, Tensor grad_edge_query)");

  // The gated sum (csrc/core/gated_sum.h): sums of value weighted by sigmoids of gate_src[u] + gate_dst[v] +
  // gate_edge[e]; edge_value[e] is added to value[u] first. value, gate_src (num_src, *), gate_dst (num_dst, *),
  // gate_edge and edge_value (E, *) or none, of one dtype. edges: the sigmoids' arguments, if return_edges is set.
  // save: also return what the backward reads. A result that was not asked for is empty.
  m.def(
      "gated_sum(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor value, Tensor gate_src, Tensor gate_dst, "
      "Tensor? gate_edge, Tensor? edge_value, bool normalize, float eps, bool return_edges, bool save, "
      "bool short_rows=False) -> (Tensor out, Tensor edges, Tensor scale, Tensor quotient)");
  m.def(
      "gated_sum_backward(Tensor indptr, Tensor indices, Tensor? edge_ids, Tensor out_indptr, Tensor out_indices, "
      "Tensor? out_edge_ids, Tensor value, Tensor gate_src, Tensor gate_dst, Tensor? gate_edge, Tensor? edge_value, "
      "bool normalize, Tensor grad, Tensor? grad_edges, Tensor scale, Tensor quotient, bool need_value, "
      "bool need_gate_src, bool need_gate_dst, bool need_gate_edge, bool need_edge_value, bool short_rows=False, "
      "bool out_short_rows=False) -> (Tensor grad_value, Tensor grad_gate_src, Tensor grad_gate_dst, "
      "Tensor grad_gate_edge, Tensor grad_edge_value)");

  // out[i] = table[ids[i]], copied as bytes, for any dtype. table (N, ...): each row is contiguous, and rows may lie
  // apart. ids (n,): int32 or int64, at any stride. out (n, ...): of table's dtype, contiguous, in memory of its own.
  // All are on one device, or table is page-locked memory of the CPU and the others are on CUDA. The GPU then reads the
  // rows in place, so they must not change before the stream has read them. These ids are checked, unlike those of a
  // topology. On the CPU an id out of range raises IndexError before any row is copied. On CUDA an error would need a
  // synchronisation, so its row is filled with bytes of 0xFF (nan, or -1) and nothing is read. num_threads: the number
  // of threads that copy on the CPU; 0 means PyTorch's.
  //
  // scale: table has codes of 8 bits (uint8, int8, float8_e4m3fn, float8_e5m2), and out[i] = (table[ids[i]] -
  // zero_point) * scale, in fp32, rounded once to out's dtype (fp16, bf16 or fp32). scale and zero_point (integers
  // only): fp32, of one value, of (N, 1, ...) or of the shape of a row; on the device of out or of table. On CUDA the
  // row of an id out of range is nan.
  m.def(
      "gather_rows(Tensor table, Tensor ids, Tensor(a!) out, int num_threads=0, Tensor? scale=None, "
      "Tensor? zero_point=None) -> ()");
}

namespace halfgnn {
namespace {

void register_operators(Library& m) {
  register_code_sum(m);
  register_copy_u_reduce(m);
  register_edge_softmax(m);
  register_gat_attention(m);
  register_gated_sum(m);
  register_gather_rows(m);
  register_graph(m);
  register_head_logits(m);
  register_pair_attention(m);
  register_sddmm(m);
  register_segment_reduce(m);
  register_spmm(m);
}

}  // namespace
}  // namespace halfgnn

#ifdef HALFGNN_CPU_KEY
HALFGNN_KERNELS(HALFGNN_CPU_KEY, m) {
  halfgnn::register_operators(m);
  halfgnn::register_coo_softmax(m);
  halfgnn::register_coo_sum(m);
  halfgnn::register_neighbor_sample(m);
  halfgnn::register_reorder(m);
}
#endif
#ifdef HALFGNN_CUDA_KEY
HALFGNN_KERNELS(HALFGNN_CUDA_KEY, m) { halfgnn::register_operators(m); }
#endif
