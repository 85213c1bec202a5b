// Replaces the header of the same name, which comes with nvcc: CUDA's keywords as a host compiler understands them.
// Included before everything else, since a toolkit's headers would find their own beside them.
#pragma once
#define __HOST_DEFINES_H__

#define CUDARTAPI
#define CUDARTAPI_CDECL

#define __host__
#define __device__
#define __global__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __grid_constant__
#define __cluster_dims__(...)
#define __launch_bounds__(...)

#define __annotate__(a)
#define __specialization_static
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __forceinline__ __inline__ __attribute__((always_inline))

// Blocks run one after another, so one copy a thread of the host will do. Not `static`, because `extern __shared__`
// must be valid too: build.py defines such variables.
#define __shared__ thread_local
