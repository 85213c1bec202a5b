// Rows of a table by id, copied or converted, on CUDA. See launch.h for what holds for all launchers.
#pragma once

#include "../core/launch.h"

namespace halfgnn::cuda {

constexpr int64_t kMostRowBytes = int64_t{1} << 30;

// table and out need no alignment. table may also be the CPU's page-locked memory, at the address that the GPU knows it
// by. Rows of at most kMostRowBytes. Ids are not trusted: the row of one that is out of range is filled with bytes of
// 0xFF, and nothing is read.
cudaError_t gather_rows(const GatherRowsArgs& args, const Launch& launch);

// The same for tables of codes: the row of an id that is out of range is filled with nan. Scales may be in page-locked
// memory too.
cudaError_t dequantize_rows(const GatherRowsArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
