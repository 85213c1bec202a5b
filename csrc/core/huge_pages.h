// Pages of large results. Fresh memory is mapped at its first touch, page by page. With pages of 4 KB that takes longer
// than to write a row that is a sum of few others.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace halfgnn {

// Asks for huge pages for memory that nothing was written to yet, as NumPy does for arrays of this size. A system that
// has none, or whose setting is not "madvise" or "always", ignores it.
inline void advise_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr int64_t kLeast = 1 << 22;
  constexpr uintptr_t kPage = 1 << 12;  // where pages are larger, the call fails and changes nothing
  if (bytes < kLeast) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data), first = (begin + kPage - 1) / kPage * kPage;
  const uintptr_t end = (begin + static_cast<uintptr_t>(bytes)) / kPage * kPage;
  madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

}  // namespace halfgnn
