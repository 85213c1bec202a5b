// Between gat_attention.cu and gat_attention_backward.cu, which choose, and the files that instantiate the kernels for
// one type.
#pragma once

#include "../../core/heads.cuh"
#include "../../core/row_units.cuh"
#include "../shared/attention.cuh"
#include "gat_attention.h"

namespace halfgnn::cuda {

// What a lane adds up.
enum class GatSums {
  kAll,       // w x
  kPositive,  // and those of the edges with s_e > 0 beside it
  kDots       // w x, and per edge <x, own row>
};

// How feat (backward: the gradient) is gathered. Chosen from sizes and alignment alone. In `layout`, tiles of a head
// are slices as well: other warps take them.
struct GatPlan {
  int vector;  // elements of an access
  HeadLayout layout;
  RowUnits units;  // of warps

  int64_t slices() const { return int64_t{layout.slices} * layout.tiles; }
};

bool is_valid_gat(const GatArgs& args);
// `bits`: the addresses of all that is accessed by vectors, or-ed. whole_heads: heads are not cut into tiles unless
// they are wider than a warp.
GatPlan plan_gat(const GatArgs& args, uintptr_t bits, bool whole_heads);

// What the edges of a destination need of it in the backward, for each head: attn_dst, lse, and <out, gradient of out>.
struct alignas(16) GatRecord {
  float logit, lse, delta, unused;
};
// Where the backward keeps what its passes hand on.
struct GatBackwardSpace {
  GatRecord* records;  // (destination, head)
  AttentionPartials partials;
  float* row_parts;  // with several tiles: parts of grad_attn_src, (row, head, tile)
};

// For elements of type T. The build instantiates them: build_sources.py.
template <typename T>
cudaError_t gat_attention_of(const GatArgs& args, const GatPlan& plan, const AttentionPartials& partials,
                             const Launch& launch);
template <typename T>
cudaError_t gat_prepare_backward_of(const GatArgs& args, int vector, GatRecord* records, const Launch& launch);
template <typename T>
cudaError_t gat_attention_backward_of(const GatArgs& args, const GatPlan& plan, GatSums sums,
                                      const GatBackwardSpace& space, const Launch& launch);
template <typename T>
cudaError_t gat_edge_gradient_of(const GatArgs& args, const GatPlan& plan, const GatRecord* records,
                                 const Launch& launch);

}  // namespace halfgnn::cuda
