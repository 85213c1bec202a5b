// See tensor.h.
#pragma once

#ifdef HALFGNN_STABLE_ABI
#include "stable/errors.h"
#else
#include "aten/errors.h"
#endif
