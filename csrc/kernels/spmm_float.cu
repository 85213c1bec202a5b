#include "spmm.cuh"

namespace halfgnn::cuda {

HALFGNN_INSTANTIATE_SPMM(float, float, int32_t);
HALFGNN_INSTANTIATE_SPMM(float, float, int64_t);

}  // namespace halfgnn::cuda
