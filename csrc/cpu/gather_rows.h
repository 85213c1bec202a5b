// gather_rows on the CPU.
#pragma once

#include "../core/arguments.h"

namespace halfgnn::cpu {

void gather_rows(const GatherRowsArgs& args);

}  // namespace halfgnn::cpu
