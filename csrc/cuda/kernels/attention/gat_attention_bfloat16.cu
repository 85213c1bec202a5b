#include "gat_attention.cuh"

namespace halfgnn::cuda {

cudaError_t gat_attention_bfloat16(const GatArgs& args, const GatPlan& plan, const AttentionPartials& partials,
                                   const Launch& launch) {
  return gat_attention_of<__nv_bfloat16>(args, plan, partials, launch);
}

}  // namespace halfgnn::cuda
