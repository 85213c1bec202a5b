// The planners' only question to CUDA.
#pragma once

#include "model.h"

namespace halfgnn::cuda {

// The device on which this thread launches. CUDA is asked once per device: a launch costs no attribute calls.
Device current_device();

}  // namespace halfgnn::cuda
