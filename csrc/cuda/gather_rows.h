// gather_rows on CUDA.
#pragma once

#include "../core/arguments.h"

namespace halfgnn::cuda {

// On the current stream.
void gather_rows(const GatherRowsArgs& args);

}  // namespace halfgnn::cuda
