// GATv2 on tensor cores: what its launcher (gatv2_attention.cuh) tells the rest. It takes the passes of pair/pass.h
// without records of edges, of the same arguments and with the same results, in the shapes that plan/tensor_cores.h
// names.
#pragma once

#include "../pass.h"

namespace halfgnn::cuda {

// One pass over elements of a half type. The build instantiates them: build_sources.py.
template <typename T>
cudaError_t gatv2_tensor_of(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch);

}  // namespace halfgnn::cuda
