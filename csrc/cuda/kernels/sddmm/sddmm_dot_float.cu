#include "sddmm_dot.cuh"

namespace halfgnn::cuda {

cudaError_t sddmm_dot_float(const SddmmArgs& args, const Launch& launch) { return sddmm_dot_of<float>(args, launch); }

}  // namespace halfgnn::cuda
