// Errors of c10, which PyTorch turns into Python's.
#pragma once

#include <c10/util/Exception.h>

#define CHECK_VALUE TORCH_CHECK_VALUE
#define CHECK_TYPE TORCH_CHECK_TYPE
#define CHECK_INDEX TORCH_CHECK_INDEX
#define CHECK_IMPLEMENTED TORCH_CHECK_NOT_IMPLEMENTED
