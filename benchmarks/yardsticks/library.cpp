// The schemas of what is only there to be measured against: kernels for CUDA, in a library that is not shipped.

#include <torch/library.h>

TORCH_LIBRARY(halfgnn_yardsticks, m) {
  // A measuring aid: reads the rows of feat (N, F) that `indices` names, as gspmm does, and nothing else.
  // Rows are a multiple of 16 bytes; tile_bytes of each, at most 512 (0), are gathered for all edges before the next.
  // The exclusive or of the words returned, of which there are as many as suits the kernel, is that of the words read.
  m.def("gather_limit(Tensor indices, Tensor feat, int tile_bytes=0) -> Tensor");

  // Competitors for the benchmarks: the algorithm of DGL's kernels for half precision, with its rounding in
  // between. gspmm of copy_lhs, copy_rhs (sum, max) and mul (sum; weights of lhs's shape, or one for all of its last
  // dimension), CSC; arg: what won, a node or an edge. gsddmm of add, sub, mul, div and dot of equal shapes, on a list
  // of edges, whose order is that of edge data.
  m.def(
      "scalar_spmm(Tensor indptr, Tensor indices, Tensor? edge_ids, str op, str reduce, Tensor? lhs, Tensor? rhs) "
      "-> (Tensor out, Tensor arg)");
  m.def(
      "scalar_sddmm(Tensor src, Tensor dst, str op, Tensor lhs, Tensor rhs, str lhs_target, str rhs_target) -> "
      "Tensor");

  // To be read, and an oracle for tests: a kernel per family in plain loops. CSC with int32 ids; x (rows, heads, dim),
  // weight and logits (edges, heads) in the order of the matrix. score: gat (leaky of of_src + of_dst, (rows, heads,
  // 1)), gatv2 (with attn (heads, dim)) or dot; constant: LeakyReLU's slope, or what dots are multiplied with.
  m.def("naive_sum(Tensor indptr, Tensor indices, Tensor x, Tensor weight) -> Tensor");
  m.def("naive_max(Tensor indptr, Tensor indices, Tensor x) -> (Tensor out, Tensor winner)");
  m.def("naive_dot(Tensor indptr, Tensor indices, Tensor x, Tensor y) -> Tensor");
  m.def("naive_softmax(Tensor indptr, Tensor logits) -> Tensor");
  m.def(
      "naive_attention(Tensor indptr, Tensor indices, str score, Tensor of_src, Tensor of_dst, Tensor? attn, Tensor x, "
      "float constant) -> Tensor");
}
