// The architecture of the GPU that a kernel runs on: 750 for sm_75, 900 for sm_90. What depends on it asks
// HALFGNN_ARCH, so that the simulator, which has no __CUDA_ARCH__, executes every branch. `#ifdef __CUDA_ARCH__` is
// left for inline PTX, and for functions that CUDA's headers do not declare for every architecture.
#pragma once

#if __has_include(<simt/runtime.h>)  // of the simulator: a setting, so that one build has all branches
#include <simt/runtime.h>
#define HALFGNN_ARCH (::simt::arch())
#define HALFGNN_COMPILED_ARCH 900
#elif defined(__CUDA_ARCH__)
#define HALFGNN_ARCH __CUDA_ARCH__
#define HALFGNN_COMPILED_ARCH __CUDA_ARCH__
#else  // nvcc's pass for the host, which makes no code of kernels
#define HALFGNN_ARCH 900
#define HALFGNN_COMPILED_ARCH 900
#endif

namespace halfgnn::cuda {

// For launch bounds, which are constants. The simulator ignores them: it has no registers to divide.
constexpr int kCompiledArch = HALFGNN_COMPILED_ARCH;

}  // namespace halfgnn::cuda
