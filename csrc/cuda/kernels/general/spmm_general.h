// spmm for any operator, broadcast and types: what no kernel of its own takes (see spmm.h).
#pragma once

#include "../core/launch.h"

namespace halfgnn::cuda {

size_t spmm_general_workspace(const SpmmArgs& args);
cudaError_t spmm_general(const SpmmArgs& args, const Launch& launch);

}  // namespace halfgnn::cuda
