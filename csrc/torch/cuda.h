// See tensor.h.
#pragma once

#ifdef HALFGNN_STABLE_ABI
#include "stable/cuda.h"
#else
#include "aten/cuda.h"
#endif
