// Marks a function that hosts and devices compile.
#pragma once

#if defined(__CUDACC__)
#define HALFGNN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define HALFGNN_HOST_DEVICE inline
#endif
