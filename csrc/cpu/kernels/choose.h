// The choice among the tables of the instruction sets.
#pragma once

#include <vector>

#include "kernels.h"

namespace halfgnn {

// The tables that this processor can run, the fastest first. The last one runs everywhere.
std::vector<const KernelTable*> supported_tables();

// The table that this process uses: the one that the environment's HALFGNN_CPU names, otherwise the fastest. Throws if
// HALFGNN_CPU names none that is supported.
const KernelTable& kernels();

}  // namespace halfgnn
