#include "spmm.cuh"

namespace halfgnn::cuda {

HALFGNN_INSTANTIATE_SPMM(__nv_bfloat16, __nv_bfloat16, int32_t);
HALFGNN_INSTANTIATE_SPMM(__nv_bfloat16, __nv_bfloat16, int64_t);
HALFGNN_INSTANTIATE_SPMM(__nv_bfloat16, float, int32_t);
HALFGNN_INSTANTIATE_SPMM(__nv_bfloat16, float, int64_t);

}  // namespace halfgnn::cuda
