// Between sddmm_dot.cu and the files that instantiate its kernel for one type.
#pragma once

#include "sddmm.h"

namespace halfgnn::cuda {

cudaError_t sddmm_dot_half(const SddmmArgs& args, const Launch& launch);
cudaError_t sddmm_dot_bfloat16(const SddmmArgs& args, const Launch& launch);
cudaError_t sddmm_dot_float(const SddmmArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
