#include "mul_backward.cuh"

namespace halfgnn::cuda {

cudaError_t mul_backward_float(const MulBackwardArgs& args, const MulPlan& plan, const Launch& launch) {
  return mul_backward_with<float, float>(args, plan, launch);
}

}  // namespace halfgnn::cuda
