// The kernels for the compiler's default instruction set (SSE2 on x86-64, NEON on Arm), and the choice among tables.

#define HALFGNN_ISA baseline
#define HALFGNN_ISA_NAME "baseline"
#include "kernels_impl.h"

#include <cstdlib>
#include <cstring>

namespace halfgnn {

const KernelTable* avx2_kernels();  // null where not compiled in

// HALFGNN_CPU=baseline keeps to the default table: for tests and for measuring.
static const KernelTable& choose() {
  const char* wish = std::getenv("HALFGNN_CPU");
  const bool want_baseline = wish && std::strcmp(wish, "baseline") == 0;
#if defined(__x86_64__)
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
  const bool has_avx2 = false;
#endif
  if (has_avx2 && !want_baseline && avx2_kernels()) return *avx2_kernels();
  return baseline::kTable;
}

const KernelTable& kernels() {
  static const KernelTable& table = choose();
  return table;
}

}  // namespace halfgnn
