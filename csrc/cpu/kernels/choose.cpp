#include "choose.h"

#include <cstdlib>
#include <cstring>

namespace halfgnn {

// Of each row of INSTRUCTION_SETS in build_sources.py.
namespace baseline {
extern const KernelTable kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kKernels;
}
#endif

std::vector<const KernelTable*> supported_tables() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    tables.push_back(&avx2::kKernels);
#endif
  tables.push_back(&baseline::kKernels);
  return tables;
}

namespace {

// HALFGNN_CPU=baseline is for tests and for measuring.
const KernelTable& choose() {
  const std::vector<const KernelTable*> tables = supported_tables();
  const char* wish = std::getenv("HALFGNN_CPU");
  for (const KernelTable* table : tables)
    if (wish && std::strcmp(wish, table->name) == 0) return *table;
  return *tables.front();
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& chosen = choose();
  return chosen;
}

}  // namespace halfgnn
