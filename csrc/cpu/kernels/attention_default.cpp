// The fused attentions for the compiler's default instruction set, and the choice among tables.

#define HALFGNN_ISA baseline
#include "attention_impl.h"

#include <cstring>

#include "kernels.h"

namespace halfgnn {

const AttentionTable* avx2_attention_kernels();  // null where not compiled in

const AttentionTable& attention_kernels() {
  static const AttentionTable& table =
      std::strcmp(kernels().name, "baseline") == 0 ? baseline::kAttentionTable : *avx2_attention_kernels();
  return table;
}

}  // namespace halfgnn
