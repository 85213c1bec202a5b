// See tensor.h.
#pragma once

#ifdef HALFGNN_STABLE_ABI
#include "stable/threads.h"
#else
#include "aten/threads.h"
#endif
