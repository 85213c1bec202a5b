// Edge softmax of fp16 logits.
#include "edge_softmax.cuh"

namespace halfgnn::cuda {

template cudaError_t launch_softmax<__half, false>(const SoftmaxProblem&, const SoftmaxShape&, cudaStream_t);
template cudaError_t launch_softmax<__half, true>(const SoftmaxProblem&, const SoftmaxShape&, cudaStream_t);

}  // namespace halfgnn::cuda
