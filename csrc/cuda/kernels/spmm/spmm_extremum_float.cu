#include "spmm_extremum.cuh"

namespace halfgnn::cuda {

template cudaError_t spmm_extremum_of<float>(const SpmmArgs&, const ExtremumKernelArgs&, const GatherShape&,
                                             const Launch&);

}  // namespace halfgnn::cuda
