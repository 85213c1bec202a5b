#include "mul_backward.cuh"

namespace halfgnn::cuda {

cudaError_t mul_backward_bfloat16(const MulBackwardArgs& args, const MulPlan& plan, const Launch& launch) {
  return mul_backward_of<__nv_bfloat16>(args, plan, launch);
}

}  // namespace halfgnn::cuda
