// Edge softmax of fp32 logits.
#include "edge_softmax.cuh"

namespace halfgnn::cuda {

template cudaError_t launch_softmax<float, false>(const SoftmaxProblem&, const SoftmaxShape&, cudaStream_t);
template cudaError_t launch_softmax<float, true>(const SoftmaxProblem&, const SoftmaxShape&, cudaStream_t);

}  // namespace halfgnn::cuda
