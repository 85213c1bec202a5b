// Bytes of registers in another order.
#pragma once

#include "launch.cuh"

namespace halfgnn::cuda {

// Four bytes of b a, from the lowest, by the digits of kSelector: 0 to 3 of a, 4 to 7 of b, and 8 more for eight times
// the byte's sign.
template <uint32_t kSelector>
__device__ uint32_t bytes_of(uint32_t a, uint32_t b) {
  uint32_t result = 0;
#ifdef __CUDA_ARCH__
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "n"(kSelector));
#else
  for (uint32_t k = 0; k < 4; ++k) {
    const uint32_t digit = kSelector >> 4 * k, byte = (digit & 4 ? b : a) >> 8 * (digit & 3) & 0xff;
    result |= (digit & 8 ? (byte >> 7) * 0xff : byte) << 8 * k;
  }
#endif
  return result;
}

}  // namespace halfgnn::cuda
