// How launchers choose the width of an access. On hosts only.
#pragma once

#include <cstdint>

namespace halfgnn::cuda {

// Whether all of these addresses, which may be null, are multiples of `bytes`.
template <class... Data>
bool are_aligned(int64_t bytes, const Data*... data) {
  const uintptr_t bits = (uintptr_t{0} | ... | reinterpret_cast<uintptr_t>(data));
  return bits % static_cast<uintptr_t>(bytes) == 0;
}

// The greatest of `most`, most / 2, ... for which fits(count) holds; 1 if none does. `most` is a power of two.
template <class Fits>
int widest_vector(int64_t most, const Fits& fits) {
  while (most > 1 && !fits(most)) most /= 2;
  return static_cast<int>(most);
}

}  // namespace halfgnn::cuda
