// Small kernels that show what the simulator does, and what it finds. Called from test_simt.py.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>
#include <cstring>
#include <exception>

#include "../../csrc/cuda/kernels/core/async_copy.cuh"
#include "../../csrc/cuda/kernels/core/mma.cuh"
#include "../../csrc/cuda/kernels/core/uniform.cuh"

namespace simt_selftest {
namespace {

constexpr unsigned kAll = 0xffffffffu;

struct Args {
  const int* in;
  int* out;
  int n;
};

__device__ int lane_of() { return static_cast<int>(threadIdx.x % 32); }

// out[i] = what the lane gets, for eight collectives.
__global__ void collectives(const Args args) {
  const int lane = lane_of();
  int* out = args.out + 8 * threadIdx.x;
  const int value = args.in[threadIdx.x];
  out[0] = __shfl_sync(kAll, value, (lane + 5) % 32);
  out[1] = __shfl_up_sync(kAll, value, 3);
  out[2] = __shfl_down_sync(kAll, value, 3);
  out[3] = __shfl_xor_sync(kAll, value, 7);
  out[4] = __shfl_sync(kAll, value, lane + 9, 8);
  out[5] = static_cast<int>(__ballot_sync(kAll, value % 3 == 0));
  out[6] = __any_sync(kAll, value == 40) + 2 * __all_sync(kAll, value >= 32);
  out[7] = static_cast<int>(__shfl_sync(kAll, static_cast<long long>(value) << 33, 31) >> 33);
}

// The greatest of a warp's values, as its architecture finds it.
__global__ void greatest(const Args args) { args.out[threadIdx.x] = halfgnn::cuda::warp_max(args.in[threadIdx.x]); }
__global__ void reduce_max(const Args args) {
  if (lane_of() < 5) args.out[threadIdx.x] = __reduce_max_sync(0x1f, args.in[threadIdx.x]);
}

// A lane's fragments of a product: registers of a, b and the sum; n: of bfloat16. out: those of the sum.
__global__ void mma(const Args args) {
  const int* in = args.in + 10 * threadIdx.x;
  unsigned int a[4], b[2];
  float sum[4];
  for (int i = 0; i < 4; ++i) a[i] = static_cast<unsigned int>(in[i]);
  for (int i = 0; i < 2; ++i) b[i] = static_cast<unsigned int>(in[4 + i]);
  for (int i = 0; i < 4; ++i) sum[i] = __int_as_float(in[6 + i]);
  if (args.n == 0) {
    halfgnn::cuda::multiply_add<__half>(a, b, sum);
  } else {
    halfgnn::cuda::multiply_add<__nv_bfloat16>(a, b, sum);
  }
  for (int i = 0; i < 4; ++i) args.out[4 * threadIdx.x + i] = __float_as_int(sum[i]);
}
__global__ void movmatrix(const Args args) {
  const auto row = static_cast<unsigned int>(args.in[threadIdx.x]);
  args.out[threadIdx.x] = static_cast<int>(halfgnn::cuda::transpose_8x8(row));
}
__global__ void mma_of_some_lanes(const Args args) {
  const unsigned int a[4] = {}, b[2] = {};
  float sum[4] = {};
  if (lane_of() >= 8) halfgnn::cuda::multiply_add<__half>(a, b, sum);
  args.out[threadIdx.x] = static_cast<int>(sum[0]);
}
__global__ void mma_beside_movmatrix(const Args args) {
  const unsigned int a[4] = {}, b[2] = {};
  float sum[4] = {};
  if (lane_of() >= 8) {
    halfgnn::cuda::multiply_add<__half>(a, b, sum);
  } else {
    args.out[threadIdx.x] = static_cast<int>(halfgnn::cuda::transpose_8x8(1));
  }
}

// Halves of a warp with masks of their own, at their own pace.
__global__ void partial_masks(const Args args) {
  const int lane = lane_of();
  const unsigned mask = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  int sum = args.in[lane];
  for (int round = 0; round < (lane < 16 ? 3 : 5); ++round) sum += __shfl_xor_sync(mask, sum, 1);
  args.out[lane] = sum;
}

// The sum of the block's values: through static shared memory, a barrier between its use in two rounds.
__global__ void block_sum(const Args args) {
  __shared__ int partial[32];
  for (int round = 0; round < args.n; ++round) {
    int sum = args.in[threadIdx.x] + round;
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAll, sum, distance);
    if (lane_of() == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    int total = 0;
    for (unsigned int warp = 0; warp < blockDim.x / 32; ++warp) total += partial[warp];
    args.out[round * blockDim.x + threadIdx.x] = total;
    __syncthreads();
  }
}

// Each lane reads what its neighbour wrote: __syncwarp between.
__global__ void neighbour(const Args args) {
  extern __shared__ int exchange[];
  exchange[threadIdx.x] = args.in[threadIdx.x];
  __syncwarp();
  args.out[threadIdx.x] = exchange[threadIdx.x ^ 1];
}

// What a block finds in shared memory before it has written any.
__global__ void uninitialised(const Args args) {
  __shared__ int values[32];
  extern __shared__ int exchange[];
  const int* volatile found = values;
  if (lane_of() == 0) {
    args.out[2 * blockIdx.x] = found[0];
    args.out[2 * blockIdx.x + 1] = exchange[0];
  }
  values[lane_of()] = exchange[lane_of()] = 7;
}

__global__ void dynamic_overrun(const Args args) {
  extern __shared__ int exchange[];
  args.out[threadIdx.x] = exchange[threadIdx.x + args.n];
}

__global__ void static_overrun(const Args args) {
  __shared__ int values[32];
  values[lane_of()] = 1;
  args.out[threadIdx.x] = values[lane_of() + args.n];
}

// Which lane or block comes when.
__global__ void order_of_lanes(const Args args) { args.out[args.out[0]++ + 1] = static_cast<int>(threadIdx.x); }
__global__ void order_of_blocks(const Args args) { args.out[args.out[0]++ + 1] = static_cast<int>(blockIdx.x); }

// Races unless n: a lane's place is written, and read by another lane, with or without a barrier between.
__global__ void race_in_a_warp(const Args args) {
  extern __shared__ int exchange[];
  exchange[threadIdx.x] = args.in[threadIdx.x];
  if (args.n != 0) __syncwarp();
  args.out[threadIdx.x] = exchange[threadIdx.x ^ 1];
}
__global__ void race_between_warps(const Args args) {
  __shared__ int values[64];
  values[threadIdx.x] = args.in[threadIdx.x];
  __syncwarp();
  if (args.n != 0) __syncthreads();
  args.out[threadIdx.x] = values[threadIdx.x ^ 32];
}
// A warp reads what another one adds to: AddressSanitizer checks the load of an addition, not its store.
__global__ void race_of_a_sum(const Args args) {
  __shared__ int values[2][32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_of();
  values[warp][lane] = args.in[threadIdx.x];
  __syncthreads();
  if (warp == 0) values[warp][lane] += values[1][lane];
  if (args.n != 0) __syncthreads();
  args.out[threadIdx.x] = values[0][lane];
}
// A warp reads what another one writes later.
__global__ void race_with_the_next_round(const Args args) {
  __shared__ int values[32];
  if (threadIdx.x < 32) values[lane_of()] = args.in[threadIdx.x];
  __syncthreads();
  args.out[threadIdx.x] = values[lane_of()];
  if (args.n != 0) __syncthreads();
  if (threadIdx.x < 32) values[lane_of()] = 0;
}

// Every warp leaves its values behind, and the last one to arrive sums up those of all. out: how many arrived, the sum,
// values. n: what is done wrong.
enum Mistake { kNoFenceBefore = 1, kNoFenceAfter, kReadsBefore, kNoAtomic, kNoBarrierBefore, kNoBarrierAfter };
__global__ void last_to_arrive(const Args args) {
  const int warps = static_cast<int>(gridDim.x * blockDim.x / 32), lane = lane_of();
  int* const values = args.out + 2;
  const auto sum = [&] {
    int total = 0;
    for (int warp = 0; warp < warps; ++warp) total += values[32 * warp + lane];
    return total;
  };
  values[blockIdx.x * blockDim.x + threadIdx.x] = args.in[threadIdx.x];
  if (args.n != kNoBarrierBefore) __syncwarp();
  int arrived = 0, early = 0;
  if (args.n == kReadsBefore) early = sum();
  if (lane == 0) {
    if (args.n != kNoFenceBefore) __threadfence();
    arrived = args.n == kNoAtomic ? args.out[0]++ : atomicAdd(args.out, 1);
    if (args.n != kNoFenceAfter) __threadfence();
  }
  if (args.n != kNoBarrierAfter) __syncwarp();
  if (__shfl_sync(kAll, arrived, 0) + 1 < warps) return;
  int total = args.n == kReadsBefore ? early : sum();
  for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(kAll, total, distance);
  if (lane == 0) args.out[1] = total;
}
// Blocks that write to one place, or to one that others have read. n: 1 by atomics, 2 all lanes.
__global__ void same_place(const Args args) {
  if (args.n == 1) {
    atomicAdd(args.out, 1);
  } else if (args.n == 2 || threadIdx.x == 0) {
    args.out[0] = static_cast<int>(blockIdx.x);
  }
}
__global__ void read_place(const Args args) {
  const int value = blockIdx.x == 0 ? 0 : args.out[0];
  if (blockIdx.x == 0) args.out[0] = 1;
  args.out[1 + blockIdx.x] = value;
}

// A ring of three stages of 16 bytes a lane: out = the sum of each four values, of the lane's own quads and, behind a
// barrier, of its neighbour's. n: what is done wrong.
enum WrongCopy {
  kNoWait = 1,
  kOneGroupTooFew,
  kGroupsNotEnded,
  kNoBarrierForOthers,
  kOverwritesTooSoon,
  kNoWaitAtEnd,
  kNoBarrierAfterwards
};
__global__ void ring_of_copies(const Args args) {
  constexpr int kStages = 3, kSteps = 8;
  extern __shared__ uint4 ring[];  // (stages, threads)
  const int lane = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const auto place = [&](int step) { return ring + step % kStages * threads; };
  const auto issue = [&](int step) {
    const auto* const from = reinterpret_cast<const uint4*>(args.in) + (step * threads + lane) % 16;
    if (step < kSteps) halfgnn::cuda::copy_async(place(step) + lane, from);
    if (args.n != kGroupsNotEnded) halfgnn::cuda::end_group_of_copies();
  };
  issue(0);
  issue(1);
  unsigned int sum = 0;
  for (int step = 0; step < kSteps; ++step) {
    const int ahead = args.n == kOverwritesTooSoon ? step + kStages : step + kStages - 1;
    issue(ahead);
    if (args.n == kOneGroupTooFew) {
      halfgnn::cuda::wait_for_copies<kStages>();
    } else if (args.n != kNoWait) {
      halfgnn::cuda::wait_for_copies<kStages - 1>();
    }
    const uint4 own = place(step)[lane];
    if (args.n != kNoBarrierForOthers) __syncwarp();
    const uint4 other = place(step)[lane ^ 1];
    sum += own.x + own.y + own.z + own.w + other.x + other.y + other.z + other.w;
    if (args.n != kNoBarrierAfterwards) __syncwarp();
  }
  if (args.n == kNoWaitAtEnd) issue(0);
  args.out[threadIdx.x] = static_cast<int>(sum);
}
__global__ void copy_to_global(const Args args) { halfgnn::cuda::copy_async(args.out + 4 * lane_of(), args.in); }
// Twice to a place that its lane reads. n: 1, 2: a misaligned target, source; 4, 8: zeros, nothing in the second round.
__global__ void copies_to_one_place(const Args args) {
  __shared__ int4 values[33];
  int* const at = reinterpret_cast<int*>(values) + 4 * lane_of();
  int sum = 0;
  for (int round = 0; round < 2; ++round) {
    const int* const from = args.in + 4 * ((lane_of() + round) % 8);
    const bool is_last = round == 1;
    halfgnn::cuda::copy_async(at + args.n % 2, from + args.n / 2 % 2, !is_last || args.n != 8, !is_last || args.n != 4);
    halfgnn::cuda::end_group_of_copies();
    __syncwarp();
    halfgnn::cuda::wait_for_copies<0>();
    sum += at[0];
  }
  args.out[threadIdx.x] = sum;
}

// ---- errors

__global__ void missing_lanes(const Args args) {
  if (lane_of() >= 16) return;
  args.out[threadIdx.x] = __shfl_sync(kAll, args.in[threadIdx.x], 0);
}
__global__ void different_collectives(const Args args) {
  args.out[threadIdx.x] = lane_of() < 16 ? __shfl_sync(kAll, 1, 0) : __any_sync(kAll, 1);
}
__global__ void different_masks(const Args) { __syncwarp(lane_of() == 0 ? kAll : 0xfffffffeu); }
__global__ void divergent_barrier(const Args) {
  if (threadIdx.x < 32) __syncthreads();
}
__global__ void different_barriers(const Args) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void not_in_mask(const Args) { __syncwarp(0x0000ffffu); }
__global__ void source_not_in_mask(const Args args) {
  if (lane_of() < 16) args.out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 20);
}
__global__ void assertion(const Args args) { assert(args.in[threadIdx.x] >= 0 && "negative"); }
__global__ void trap(const Args args) {
  if (args.in[threadIdx.x] < 0) __trap();
}
__global__ void read(const Args args) { args.out[threadIdx.x] = __ldg(args.in + threadIdx.x + args.n); }
__global__ void misaligned(const Args args) {
  args.out[threadIdx.x] = __ldg(reinterpret_cast<const int4*>(args.in + args.n)).x;
}
__global__ void local_overrun(const Args args) {
  int values[4] = {1, 2, 3, 4};
  int* volatile pointer = values;
  args.out[threadIdx.x] = pointer[args.n];
}

struct Named {
  const char* name;
  void (*kernel)(Args);
};
#define SIMT_NAMED(kernel) {#kernel, kernel}
constexpr Named kKernels[] = {
    SIMT_NAMED(collectives),
    SIMT_NAMED(mma),
    SIMT_NAMED(movmatrix),
    SIMT_NAMED(mma_of_some_lanes),
    SIMT_NAMED(mma_beside_movmatrix),
    SIMT_NAMED(greatest),
    SIMT_NAMED(reduce_max),
    SIMT_NAMED(partial_masks),
    SIMT_NAMED(block_sum),
    SIMT_NAMED(neighbour),
    SIMT_NAMED(race_in_a_warp),
    SIMT_NAMED(race_between_warps),
    SIMT_NAMED(race_of_a_sum),
    SIMT_NAMED(race_with_the_next_round),
    SIMT_NAMED(last_to_arrive),
    SIMT_NAMED(ring_of_copies),
    SIMT_NAMED(copy_to_global),
    SIMT_NAMED(copies_to_one_place),
    SIMT_NAMED(same_place),
    SIMT_NAMED(read_place),
    SIMT_NAMED(uninitialised),
    SIMT_NAMED(dynamic_overrun),
    SIMT_NAMED(static_overrun),
    SIMT_NAMED(order_of_lanes),
    SIMT_NAMED(order_of_blocks),
    SIMT_NAMED(missing_lanes),
    SIMT_NAMED(different_collectives),
    SIMT_NAMED(different_masks),
    SIMT_NAMED(divergent_barrier),
    SIMT_NAMED(different_barriers),
    SIMT_NAMED(not_in_mask),
    SIMT_NAMED(source_not_in_mask),
    SIMT_NAMED(assertion),
    SIMT_NAMED(trap),
    SIMT_NAMED(read),
    SIMT_NAMED(misaligned),
    SIMT_NAMED(local_overrun),
};

char message[4096];

}  // namespace

// Runs a kernel by name. What it threw, or "" if nothing; null where there is no such kernel.
extern "C" __attribute__((visibility("default"))) const char* simt_selftest(const char* name, int blocks, int threads,
                                                                            int shared_bytes, const int* in, int* out,
                                                                            int n) {
  for (const Named& entry : kKernels) {
    if (std::strcmp(entry.name, name) != 0) continue;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned int>(blocks));
    config.blockDim = dim3(static_cast<unsigned int>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    std::snprintf(message, sizeof(message), "%s", "");
    try {
      const cudaError_t status = cudaLaunchKernelEx(&config, entry.kernel, Args{in, out, n});
      if (status != cudaSuccess) std::snprintf(message, sizeof(message), "%s", cudaGetErrorString(status));
    } catch (const std::exception& error) {
      std::snprintf(message, sizeof(message), "%s", error.what());
    }
    return message;
  }
  return nullptr;
}

}  // namespace simt_selftest
