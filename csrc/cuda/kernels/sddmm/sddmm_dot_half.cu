#include "sddmm_dot.cuh"

namespace halfgnn::cuda {

cudaError_t sddmm_dot_half(const SddmmArgs& args, const Launch& launch) { return sddmm_dot_of<__half>(args, launch); }

}  // namespace halfgnn::cuda
