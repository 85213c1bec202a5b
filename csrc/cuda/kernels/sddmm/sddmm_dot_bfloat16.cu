#include "sddmm_dot.cuh"

namespace halfgnn::cuda {

cudaError_t sddmm_dot_bfloat16(const SddmmArgs& args, const Launch& launch) {
  return sddmm_dot_of<__nv_bfloat16>(args, launch);
}

}  // namespace halfgnn::cuda
