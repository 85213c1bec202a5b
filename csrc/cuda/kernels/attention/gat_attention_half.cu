#include "gat_attention.cuh"

namespace halfgnn::cuda {

cudaError_t gat_attention_half(const GatArgs& args, const GatPlan& plan, const AttentionPartials& partials,
                               const Launch& launch) {
  return gat_attention_of<__half>(args, plan, partials, launch);
}

}  // namespace halfgnn::cuda
