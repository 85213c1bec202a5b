#include "gatv2_attention.cuh"
#include "gatv2_attention_launch.h"

namespace halfgnn::cuda {

cudaError_t gatv2_attention_float(PairPass pass, const PairArgs& args, const PairShape& shape, const Launch& launch) {
  return pair_attention<Gatv2Score, float>(pass, args, shape, launch);
}

}  // namespace halfgnn::cuda
