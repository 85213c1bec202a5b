#include "spmm.cuh"

namespace halfgnn::cuda {

HALFGNN_INSTANTIATE_SPMM(__half, __half, int32_t);
HALFGNN_INSTANTIATE_SPMM(__half, __half, int64_t);
HALFGNN_INSTANTIATE_SPMM(__half, float, int32_t);
HALFGNN_INSTANTIATE_SPMM(__half, float, int64_t);

}  // namespace halfgnn::cuda
