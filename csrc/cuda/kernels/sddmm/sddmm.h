// A result for every edge from the data of its ends and its own, on CUDA. See launch.h for what holds for all
// launchers.
#pragma once

#include "../core/launch.h"

namespace halfgnn::cuda {

// Dots of rows of one type, one operand at the row and the other at the column or the edge, a result for each head.
cudaError_t sddmm_dot(const SddmmArgs& args, const Launch& launch);
// The same, times a factor.
cudaError_t scaled_sddmm_dot(const SddmmArgs& args, float factor, const Launch& launch);
// Operators without broadcasting.
cudaError_t sddmm_elementwise(const SddmmArgs& args, const Launch& launch);
// The sum of a row at the column, one at the row and one at the edge.
cudaError_t sddmm_add(const SddmmAddArgs& args, const Launch& launch);
// Any operator and broadcast.
cudaError_t sddmm(const SddmmArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
