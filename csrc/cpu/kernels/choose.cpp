// The choice among the tables of the instruction sets (build_sources.py has a list of these).

#include <cstdlib>
#include <cstring>

#include "attention_table.h"
#include "kernels.h"

namespace halfgnn {
namespace baseline {
extern const KernelTable kKernels;
extern const AttentionTable kAttentionKernels;
}  // namespace baseline

#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kKernels;
extern const AttentionTable kAttentionKernels;
}  // namespace avx2
#endif

namespace {

struct Tables {
  const KernelTable& kernels;
  const AttentionTable& attention;
};

// HALFGNN_CPU=baseline keeps to the default tables: for tests and for measuring.
Tables choose() {
#if defined(__x86_64__)
  const char* wish = std::getenv("HALFGNN_CPU");
  const bool wants_baseline = wish && std::strcmp(wish, "baseline") == 0;
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (has_avx2 && !wants_baseline) return {avx2::kKernels, avx2::kAttentionKernels};
#endif
  return {baseline::kKernels, baseline::kAttentionKernels};
}

const Tables& tables() {
  static const Tables chosen = choose();
  return chosen;
}

}  // namespace

const KernelTable& kernels() { return tables().kernels; }
const AttentionTable& attention_kernels() { return tables().attention; }

}  // namespace halfgnn
