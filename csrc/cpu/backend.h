// The CPU back end.
#pragma once

#include "../core/backend.h"

namespace halfgnn::cpu {

extern const Backend kBackend;

}  // namespace halfgnn::cpu
