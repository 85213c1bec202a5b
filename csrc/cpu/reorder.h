// An order of nodes in which neighbours are near one another, and how near an order brings them. CPU only; what the
// adjacencies hold is checked. Results do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "../core/types.h"

namespace halfgnn::cpu {

// new_ids[v]: the place of node v, a permutation in the type of the ids. The two topologies are the in-edges and the
// out-edges of one square graph of fewer than 2^31 nodes.
void reorder(const Topology& in_edges, const Topology& out_edges, void* new_ids);

struct Reuse {
  int64_t found = 0;    // gathers that find their row among the last `window` different rows
  int64_t gathers = 0;  // those that were counted
};
// Of gathers of rows in the order of the columns: an LRU cache of `window` rows. Of more than 2^22 gathers, and 64
// windows, stretches are taken. columns: num_gathers ids below num_cols < 2^31.
Reuse reuse(const void* columns, bool is_int64, int64_t num_gathers, int64_t num_cols, int64_t window);

}  // namespace halfgnn::cpu
