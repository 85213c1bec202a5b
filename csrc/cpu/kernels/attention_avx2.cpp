// The fused attentions for x86-64 processors with AVX2, FMA and F16C; see kernels_avx2.cpp.

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define HALFGNN_ISA avx2
#define HALFGNN_F16C 1
#include "attention_impl.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

namespace halfgnn {
const AttentionTable* avx2_attention_kernels() { return &avx2::kAttentionTable; }
}  // namespace halfgnn

#else
#include "attention_table.h"
namespace halfgnn {
const AttentionTable* avx2_attention_kernels() { return nullptr; }
}  // namespace halfgnn
#endif
