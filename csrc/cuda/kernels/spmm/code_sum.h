// Sums and means of rows of codes of 8 bits, plain or weighted per head, on CUDA. See launch.h for what holds for all
// launchers.
//
// Method         As in spmm.h. Codes that are integers, with one scale for all rows and no weights, are added up as
//                they are: two by two in the halves of a register, which 256 codes cannot overflow. Other codes are
//                converted first. Scales and zero points of columns are applied once per row of the result, or once per
//                piece of a long row.
#pragma once

#include "../../../core/code_sum.h"
#include "../core/launch.h"

namespace halfgnn::cuda {

size_t code_sum_workspace(const CodeSumArgs& args);
cudaError_t code_sum(const CodeSumArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
