// Replaces the header of the same name: the toolkit's types and C functions, and the simulator's execution model.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include "simt/collectives.h"
#include "simt/intrinsics.h"
#include "simt/launch.h"
