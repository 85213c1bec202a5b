#include "dot_attention.cuh"
#include "dot_attention_launch.h"

namespace halfgnn::cuda {

cudaError_t dot_attention_half(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  return pair_attention<DotScore, __half>(pass, args, shape, launch);
}

}  // namespace halfgnn::cuda
