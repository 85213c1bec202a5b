#include "dot_attention.cuh"
#include "dot_attention_launch.h"

namespace halfgnn::cuda {

cudaError_t dot_attention_bfloat16(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  return pair_attention<DotScore, __nv_bfloat16>(pass, args, shape, launch);
}

}  // namespace halfgnn::cuda
