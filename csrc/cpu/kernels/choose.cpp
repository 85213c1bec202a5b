#include "choose.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace halfgnn {

#if defined(HALFGNN_TABLE)  // of a build for this processor alone
namespace HALFGNN_TABLE {
extern const KernelTable kKernels;
}
std::vector<const KernelTable*> supported_tables() { return {&HALFGNN_TABLE::kKernels}; }
#else
// Of each row of INSTRUCTION_SETS in build_sources.py.
namespace baseline {
extern const KernelTable kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kKernels;
}
namespace avx512 {
extern const KernelTable kKernels;
}
#endif

std::vector<const KernelTable*> supported_tables() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (has_avx2 && has_avx512) tables.push_back(&avx512::kKernels);
  if (has_avx2) tables.push_back(&avx2::kKernels);
#endif
  tables.push_back(&baseline::kKernels);
  return tables;
}
#endif

namespace {

// HALFGNN_CPU is for tests and for measuring.
const KernelTable& choose() {
  const std::vector<const KernelTable*> tables = supported_tables();
  const char* variable = std::getenv("HALFGNN_CPU");
  const std::string wish = variable ? variable : "";
  if (wish.empty()) return *tables.front();
  std::string names;
  for (const KernelTable* table : tables) {
    if (wish == table->name) return *table;
    names += std::string(names.empty() ? "" : ", ") + table->name;
  }
  throw std::runtime_error("HALFGNN_CPU=" + wish +
                           " names no CPU kernels that this processor can run. These are: " + names);
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& chosen = choose();
  return chosen;
}

}  // namespace halfgnn
