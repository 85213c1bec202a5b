// The operators of each file, as kernels of a library's dispatch key.
#pragma once

#include <torch/library.h>

namespace halfgnn {

void register_copy_u_reduce(torch::Library& m);
void register_edge_softmax(torch::Library& m);
void register_gat_attention(torch::Library& m);
void register_gather_rows(torch::Library& m);
void register_gated_sum(torch::Library& m);
void register_graph(torch::Library& m);
void register_neighbor_sample(torch::Library& m);  // of the CPU's key only
void register_pair_attention(torch::Library& m);
void register_reorder(torch::Library& m);  // of the CPU's key only
void register_sddmm(torch::Library& m);
void register_segment_reduce(torch::Library& m);
void register_spmm(torch::Library& m);

}  // namespace halfgnn
