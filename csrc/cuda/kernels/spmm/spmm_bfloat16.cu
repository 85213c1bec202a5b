#include "spmm_sum.cuh"

namespace halfgnn::cuda {

template cudaError_t spmm_sum_of<__nv_bfloat16>(const SpmmSumArgs&, const SumKernelArgs&, const GatherShape&,
                                                const Launch&);

}  // namespace halfgnn::cuda
