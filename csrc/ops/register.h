// The operators of each file, as kernels of a library's dispatch key.
#pragma once

#include "../torch/library.h"

namespace halfgnn {

void register_code_sum(Library& m);
void register_coo_softmax(Library& m);  // of the CPU's key only
void register_coo_sum(Library& m);      // of the CPU's key only
void register_copy_u_reduce(Library& m);
void register_edge_softmax(Library& m);
void register_gat_attention(Library& m);
void register_gather_rows(Library& m);
void register_gated_sum(Library& m);
void register_graph(Library& m);
void register_neighbor_sample(Library& m);  // of the CPU's key only
void register_head_logits(Library& m);
void register_pair_attention(Library& m);
void register_reorder(Library& m);  // of the CPU's key only
void register_sddmm(Library& m);
void register_segment_reduce(Library& m);
void register_spmm(Library& m);

}  // namespace halfgnn
