#include "mul_backward.cuh"

namespace halfgnn::cuda {

cudaError_t mul_backward_half(const MulBackwardArgs& args, const MulPlan& plan, const Launch& launch) {
  return mul_backward_of<__half>(args, plan, launch);
}

}  // namespace halfgnn::cuda
