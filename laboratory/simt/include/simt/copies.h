// cp.async, in the words of csrc/cuda/kernels/core/async_copy.cuh, which includes this if it is there.
//
// The source is read at once, but the target has garbage until its lane waits for the copy. Meanwhile any access to it
// is an error; afterwards the lane has written it, so other lanes need a barrier.
#pragma once

#include <vector_types.h>

#include "runtime.h"

namespace simt {

void begin_copy(void* target, const uint4& value, Site site);

// 16 bytes; zeros without a source.
inline void copy_async(void* target, const void* source, Site site = here()) {
  begin_copy(target, source == nullptr ? uint4{} : *static_cast<const uint4*>(source), site);
}
void end_group_of_copies();
void wait_for_copies(int groups);

}  // namespace simt
