// Operators over an edge list that is not sorted. CPU only; ids are checked.
#pragma once

#include "../core/coo.h"

namespace halfgnn::cpu {

// Raises IndexError for an id of `name` that is not below num_rows.
void check_ids(const void* ids, bool is_int64, int64_t num_ids, const char* name, int64_t num_rows);
// counts[row] = its edges
void count_edges(const EdgeList& edges, int64_t num_rows, int64_t* counts);
void coo_sum(const CooSumArgs& args);
// of num_edges rows
void coo_gather(const CooGatherArgs& args, int64_t num_edges);
void coo_dot(const CooDotArgs& args);
void coo_relu_backward(const CooReluBackwardArgs& args);
void divide_rows(const DivideRowsArgs& args);
// Of few values: by one thread.
void coo_softmax(const CooSoftmaxArgs& args);
void coo_softmax_backward(const CooSoftmaxBackwardArgs& args);

}  // namespace halfgnn::cpu
