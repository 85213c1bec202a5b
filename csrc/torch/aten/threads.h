// PyTorch's threads.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

namespace halfgnn {

using at::parallel_for;
inline int64_t num_threads() { return at::get_num_threads(); }

}  // namespace halfgnn
