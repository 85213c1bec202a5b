// See tensor.h.
#pragma once

#ifdef HALFGNN_STABLE_ABI
#include "stable/device.h"
#else
#include "aten/device.h"
#endif
