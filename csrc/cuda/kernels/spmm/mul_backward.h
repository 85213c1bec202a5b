// Between mul_backward.cu and the files that instantiate its kernel for one type.
#pragma once

#include "../core/heads.cuh"
#include "../core/rows.cuh"
#include "../general/backward.h"

namespace halfgnn::cuda {

// Chosen from sizes and alignment alone.
struct MulPlan {
  int vector;  // elements of an access
  int repeat;  // accesses a lane and row
  HeadLayout layout;
  Rows rows;
  float* partial;  // grad_feat of pieces of long rows, a row a slot
  float* dots;     // where heads have several tiles: grad_weight of the tiles done so far, (position, head)
};

cudaError_t mul_backward_half(const MulBackwardArgs& args, const MulPlan& plan, const Launch& launch);
cudaError_t mul_backward_bfloat16(const MulBackwardArgs& args, const MulPlan& plan, const Launch& launch);
cudaError_t mul_backward_float(const MulBackwardArgs& args, const MulPlan& plan, const Launch& launch);

}  // namespace halfgnn::cuda
