// The arguments of the gated sum, for both back ends. Torch-free, like arguments.h.
//
// For every edge e = (u, v) and each of `dim` columns, all in fp32 (fp64 for fp64 data):
//
//   z[e] = gate_src[u] + gate_dst[v] + gate_edge[e]      gate[e] = sigmoid(z[e]) = 1 / (1 + exp(-z[e]))
//   message[e] = value[u] + edge_value[e]                gates[v] = sum over in-edges of gate[e]
//   sum[v] = sum over in-edges of gate[e] message[e]
//   out[v] = normalize ? sum[v] / (gates[v] + eps) : sum[v]
//
// A node without in-edges gets 0. The gate is made of the unrounded z.
//
// Backward, from grad (of out) and grad_edges (of z; 0 if it is null):
//
//   scale[v] = normalize ? 1 / (gates[v] + eps) : 1      shift[v] = normalize ? grad[v] scale[v] out[v] : 0
//   dz[e] = gate[e] (1 - gate[e]) (grad[v] scale[v] message[e] - shift[v]) + grad_edges[e]
//   grad_value[u] = sum over out-edges of gate[e] grad[v] scale[v]
//   grad_gate_src[u] = sum over out-edges of dz[e]       grad_gate_dst[v] = sum over in-edges of dz[e]
//   grad_gate_edge[e] = dz[e]                            grad_edge_value[e] = gate[e] grad[v] scale[v]
//
// gate (1 - gate) is exp(-|z|) / (1 + exp(-|z|))^2, which does not cancel where the gate is near 1. The binding makes
// grad * scale and shift, of the destinations, before the passes over edges, so that those only read them.
#pragma once

#include "types.h"

namespace halfgnn {

// Rows are destinations (CSC). Node data have `dim` values per row, and so has edge data.
struct GatedSumArgs {
  Topology topology;
  int64_t num_cols = 0;
  int64_t dim = 0;
  DType type = DType::kFloat;        // of all that is read, of out and of edges
  const void* value = nullptr;       // columns
  const void* gate_src = nullptr;    // columns
  const void* gate_dst = nullptr;    // rows
  const void* gate_edge = nullptr;   // edges; may be null
  const void* edge_value = nullptr;  // edges; may be null
  bool normalize = false;
  double eps = 0.;
  void* out = nullptr;       // rows
  void* edges = nullptr;     // z, rounded once; null: not wanted
  void* scale = nullptr;     // rows, in fp32 (fp64): 1 / (gates + eps). Null: not wanted, and always without normalize
  void* quotient = nullptr;  // rows, in fp32 (fp64): out before it was rounded. Null if scale is
};

// One pass over the edges of each row. Two give all gradients: over CSC (rows are destinations) those of gate_dst,
// gate_edge and edge_value, over CSR (by_src: rows are sources) those of value and gate_src. gate_edge's may be made by
// either.
struct GatedSumBackwardArgs {
  Topology topology;
  bool by_src = false;
  int64_t num_cols = 0;
  int64_t dim = 0;
  DType type = DType::kFloat;        // of the operands, their gradients and grad_edges
  const void* value = nullptr;       // sources
  const void* gate_src = nullptr;    // sources
  const void* gate_dst = nullptr;    // destinations
  const void* gate_edge = nullptr;   // edges; may be null
  const void* edge_value = nullptr;  // edges; may be null
  const void* grad = nullptr;        // destinations: grad scale
  DType grad_type = DType::kFloat;   // fp32 (fp64) with normalize, otherwise `type`
  const void* shift = nullptr;       // destinations, in fp32 (fp64); null: 0
  const void* grad_edges = nullptr;  // edges; may be null
  // Null: not wanted.
  void* grad_value = nullptr;       // rows, by_src only
  void* grad_gate = nullptr;        // rows: of gate_src (by_src) or of gate_dst
  void* grad_gate_edge = nullptr;   // edges
  void* grad_edge_value = nullptr;  // edges, not by_src; null if edge_value is
};

}  // namespace halfgnn
