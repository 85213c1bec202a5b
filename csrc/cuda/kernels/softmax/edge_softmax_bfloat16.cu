// Edge softmax of bf16 logits.
#include "edge_softmax.cuh"

namespace halfgnn::cuda {

template cudaError_t launch_softmax<__nv_bfloat16, false>(const SoftmaxProblem&, const SoftmaxShape&, cudaStream_t);
template cudaError_t launch_softmax<__nv_bfloat16, true>(const SoftmaxProblem&, const SoftmaxShape&, cudaStream_t);

}  // namespace halfgnn::cuda
