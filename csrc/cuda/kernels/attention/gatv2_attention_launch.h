// Between gatv2_attention.cu and the files that instantiate its kernels for one type.
#pragma once

#include "pair_attention.h"

namespace halfgnn::cuda {

cudaError_t gatv2_attention_half(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch);
cudaError_t gatv2_attention_bfloat16(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch);
cudaError_t gatv2_attention_float(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch);

}  // namespace halfgnn::cuda
