// See tensor.h.
#pragma once

#ifdef HALFGNN_STABLE_ABI
#include "stable/library.h"
#else
#include "aten/library.h"
#endif
