#include "sddmm_elementwise.cuh"

namespace halfgnn::cuda {
template cudaError_t sddmm_elementwise_of<float>(const ElementwiseArgs&, int, int64_t, cudaStream_t);
}  // namespace halfgnn::cuda
