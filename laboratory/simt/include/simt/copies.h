// cp.async, in the words of csrc/cuda/kernels/core/async_copy.cuh, which includes this if it is there.
//
// The source is read at once, but the target has garbage until its lane waits for the copy. Meanwhile any access to it
// is an error; afterwards the lane has written it, so other lanes need a barrier.
#pragma once

#include "runtime.h"

#define HALFGNN_SIMT_COPIES

namespace simt {

void begin_copy(void* target, const void* value, unsigned bytes, Site site);

template <typename Word>
void copy_async(void* target, const void* source, Site site = here()) {
  const Word value = *static_cast<const Word*>(source);
  begin_copy(target, &value, sizeof(Word), site);
}
void end_group_of_copies();
void wait_for_copies(int groups);

}  // namespace simt
