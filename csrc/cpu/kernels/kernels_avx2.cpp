// The kernels for x86-64 processors with AVX2, FMA and F16C. The pragma, not a compiler flag, selects the instructions:
// this file alone gets them, and a wheel runs on any x86-64.

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define HALFGNN_ISA avx2
#define HALFGNN_F16C 1
#define HALFGNN_ISA_NAME "avx2"
#include "kernels_impl.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

namespace halfgnn {
const KernelTable* avx2_kernels() { return &avx2::kTable; }
}  // namespace halfgnn

#else
#include "kernels.h"
namespace halfgnn {
const KernelTable* avx2_kernels() { return nullptr; }
}  // namespace halfgnn
#endif
