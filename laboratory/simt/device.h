// The simulated device: what a test can set, and what the CUDA runtime says of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

namespace simt {

// From Python: simt_set and simt_get, by name. From the environment: seed is HALFGNN_SIMT_SEED, and so on.
struct Settings {
  int64_t seed = 1;
  int64_t l2_cache_bytes = 50 << 20;
  int64_t multiprocessors = 132;
  int64_t memory_bytes = int64_t{80} << 30;
  int64_t memory_kilohertz = 0;  // of 1024 bits; 0: it does not say
  int64_t arch = 900;  // compute capability, as nvcc writes it: HALFGNN_ARCH (csrc/cuda/kernels/core/arch.cuh)
  // Negative controls: 0 makes every shuffle return the lane's own value, lets everybody pass a barrier, drops every
  // __threadfence() or wait for copies, or changes the layout of fragments of matrices.
  int64_t shuffles = 1;
  int64_t matrices = 1;
  int64_t warp_barriers = 1;
  int64_t block_barriers = 1;
  int64_t fences = 1;
  int64_t copies = 1;
  int64_t races = 1;  // 0: they are not looked for
  // Counted over all launches so far.
  int64_t launches = 0;
  int64_t memsets = 0;  // beside launches
  int64_t blocks = 0;
  int64_t switches = 0;  // from lane to lane

  Settings();
  int64_t* find(const char* name);
};
extern Settings settings;

// A launch, for a program that records launches or takes the simulator's part in them
// (laboratory/machine_code/launches.py).
struct Launch {
  const char* kernel;      // its name, demangled
  const void* parameters;  // the struct that it takes by value
  uint32_t grid[3];
  uint32_t block[3];
  uint64_t shared_bytes;  // dynamic
};
// Returns 0 if the simulator is to run the kernel.
using OnLaunch = int (*)(const Launch*);
extern OnLaunch on_launch;  // simt_on_launch sets it

// Addresses of the kernels that the simulator has run.
std::set<const void*>& launched_kernels();

// Bytes of dynamic shared memory that a launch of this kernel may have.
size_t dynamic_shared_limit(const void* kernel);

}  // namespace simt
