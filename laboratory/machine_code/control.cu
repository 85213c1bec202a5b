// Kernels for the tests of the rules: each but the first breaks one.
#include <cuda_runtime.h>

namespace halfgnn::cuda {

constexpr int kUnroll = 4;

// Sums rows of 16-byte vectors, kUnroll of them in flight.
__global__ void __launch_bounds__(128, 8) control_good(const uint4* rows, const int* index, int count, uint4* out) {
  uint4 sum{};
  for (int i = 0; i + kUnroll <= count; i += kUnroll) {
    uint4 row[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) row[u] = __ldg(rows + int64_t{index[i + u]} * 32 + threadIdx.x);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum = {sum.x + row[u].x, sum.y + row[u].y, sum.z + row[u].z, sum.w + row[u].w};
  }
  out[threadIdx.x] = sum;
}

// The same but, of what is left over, every load waits for the one before it.
__global__ void __launch_bounds__(128, 8)
    control_remainder(const uint4* rows, const int* index, int count, uint4* out) {
  uint4 sum{};
  int i = 0;
  for (; i + kUnroll <= count; i += kUnroll) {
    uint4 row[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) row[u] = __ldg(rows + int64_t{index[i + u]} * 32 + threadIdx.x);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum = {sum.x + row[u].x, sum.y + row[u].y, sum.z + row[u].z, sum.w + row[u].w};
  }
  if (i < count) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint4 row = __ldg(rows + sum.x);
      sum = {sum.x + row.x, sum.y + row.y, sum.z + row.z, sum.w + row.w};
    }
  }
  out[threadIdx.x] = sum;
}

// The same with accesses of 4 bytes.
__global__ void __launch_bounds__(128, 8)
    control_narrow(const unsigned* rows, const int* index, int count, unsigned* out) {
  unsigned sum = 0;
  for (int i = 0; i + kUnroll <= count; i += kUnroll) {
    unsigned row[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) row[u] = __ldg(rows + int64_t{index[i + u]} * 32 + threadIdx.x);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum += row[u];
  }
  out[threadIdx.x] = sum;
}

// Every load waits for the one before it.
__global__ void __launch_bounds__(128, 8) control_serial(const uint4* rows, int count, uint4* out) {
  uint4 row = rows[threadIdx.x];
#pragma unroll 4
  for (int i = 0; i < count; ++i) row = rows[row.x];
  out[threadIdx.x] = row;
}

// An array that is indexed at run time.
__global__ void __launch_bounds__(128, 8) control_local(const int* index, int count, float* out) {
  float table[64];
  for (int i = 0; i < 64; ++i) table[i] = out[i];
  for (int i = 0; i < count; ++i) table[index[i] & 63] += 1;
  for (int i = 0; i < 64; ++i) out[i * 128 + threadIdx.x] = table[i];
}

// More values than registers.
__global__ void __launch_bounds__(1024, 2) control_spill(const float* values, int count, float* out) {
  float held[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) held[i] = values[i * 1024 + threadIdx.x];
  for (int k = 0; k < count; ++k) {
#pragma unroll
    for (int i = 0; i < 64; ++i) held[i] = held[i] * held[(i + 7) % 64] + values[k];
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) out[i * 1024 + threadIdx.x] = held[i];
}

// As many registers as there are.
__global__ void __launch_bounds__(128, 1) control_registers(const float* values, int count, float* out) {
  float held[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) held[i] = values[i * 128 + threadIdx.x];
  for (int k = 0; k < count; ++k) {
#pragma unroll
    for (int i = 0; i < 128; ++i) held[i] = held[i] * held[(i + 7) % 128] + values[k];
  }
#pragma unroll
  for (int i = 0; i < 128; ++i) out[i * 128 + threadIdx.x] = held[i];
}

}  // namespace halfgnn::cuda
