#include "gat_attention_backward.cuh"

namespace halfgnn::cuda {

cudaError_t gat_prepare_backward_float(const GatArgs& args, int vector, float4* records, const Launch& launch) {
  return gat_prepare_backward_of<float>(args, vector, records, launch);
}
cudaError_t gat_attention_backward_float(const GatArgs& args, const GatPlan& plan, GatSums sums,
                                         const GatBackwardSpace& space, const Launch& launch) {
  return gat_attention_backward_of<float>(args, plan, sums, space, launch);
}
cudaError_t gat_edge_gradient_float(const GatArgs& args, const GatPlan& plan, const float4* records,
                                    const Launch& launch) {
  return gat_edge_gradient_of<float>(args, plan, records, launch);
}

}  // namespace halfgnn::cuda
