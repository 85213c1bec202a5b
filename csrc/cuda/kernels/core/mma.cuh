// Products of small matrices on tensor cores (sm_80 and later), as PTX has them: a warp holds each matrix in fragments,
// some registers per lane. The whole warp takes part in every call.
//
// Fragments of mma.m16n8k16, with group = lane / 4 and quad lane t = lane % 4. A register of a and b holds two
// neighbours, the lower half first; k is the index that is summed over.
//
//   a[4]    row group + 8 (i % 2), k = 2 t + 8 (i / 2) and the next
//   b[2]    column group,          k = 2 t + 8 i       and the next
//   sum[4]  row group + 8 (i / 2), column 2 t + i % 2
//
// Products are exact. Sums are in fp32, but what does not fit is cut off rather than rounded, so that errors of many
// sums in a row lean towards zero: at most a run (running_sum.cuh) may be summed this way.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#if __has_include(<simt/matrices.h>)  // of the simulator, which has no inline PTX
#include <simt/matrices.h>
#define HALFGNN_SIMT_MATRICES
#endif

namespace halfgnn::cuda {

// sum += a * b, of elements of type T.
template <typename T>
__device__ void multiply_add(const unsigned int (&a)[4], const unsigned int (&b)[2], float (&sum)[4]);

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define HALFGNN_MMA(T, ptx_type)                                                                          \
  template <>                                                                                             \
  __device__ __forceinline__ void multiply_add<T>(const unsigned int (&a)[4], const unsigned int (&b)[2], \
                                                  float (&sum)[4]) {                                      \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." ptx_type "." ptx_type                                    \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                            \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                          \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                              \
  }
HALFGNN_MMA(__half, "f16")
HALFGNN_MMA(__nv_bfloat16, "bf16")
#undef HALFGNN_MMA
#elif defined(HALFGNN_SIMT_MATRICES)
template <typename T>
__device__ void multiply_add(const unsigned int (&a)[4], const unsigned int (&b)[2], float (&sum)[4]) {
  simt::multiply_add<T>(a, b, sum);
}
#else
template <typename T>
__device__ void multiply_add(const unsigned int (&)[4], const unsigned int (&)[2], float (&)[4]) {}
#endif

// Of an 8 x 8 matrix of 16-bit elements: lane 4 r + t holds elements 2 t and 2 t + 1 of row r, and gets those of row r
// of the transpose.
inline __device__ unsigned int transpose_8x8(unsigned int row) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned int transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(row));
  return transposed;
#elif defined(HALFGNN_SIMT_MATRICES)
  return simt::transpose_8x8(row);
#else
  return row;
#endif
}

}  // namespace halfgnn::cuda
