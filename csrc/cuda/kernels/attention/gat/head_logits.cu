// The kernels behind head_logits.h. They read the features once, and their time is that of this memory.

#include "head_logits.h"

#include "../../core/alignment.h"
#include "../../core/vector.cuh"

namespace halfgnn::cuda {
namespace {

constexpr int kThreads = 256;

// kCount of the fp32 values of an attn.
template <int kCount>
__device__ void load_attn(const float* source, float (&values)[kCount]) {
  constexpr int kWords = kCount < 4 ? kCount : 4;
#pragma unroll
  for (int i = 0; i < kCount; i += kWords) {
    const auto words = Fragment<float, kWords>::load(source + i);
    float some[kWords];
    words.widen(some);
#pragma unroll
    for (int k = 0; k < kWords; ++k) values[i + k] = some[k];
  }
}

// ---- forward: a group of 2^log2_lanes lanes takes one head of some rows

struct ForwardArgs {
  const void* feat;
  const float* attn[kMostHeadLogits];
  const void* narrow_attn;  // of feat's type, in place of the first
  float* logits[kMostHeadLogits];
  int64_t rows, heads, dim;
  int64_t step_rows;  // that all groups together take at a time
  int log2_lanes;
  float scale;  // of logits
};

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads) head_logits_kernel(const ForwardArgs args) {
  const int lanes = 1 << args.log2_lanes;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int64_t group = (int64_t{blockIdx.x} * kThreads + threadIdx.x) >> args.log2_lanes;
  const int64_t first_row = group / args.heads, head = group - first_row * args.heads;
  const bool has_second = args.logits[1] != nullptr;
  // The lanes of a warp leave together, for they sum together.
  for (int64_t row = first_row, left = args.rows; left > 0; row += args.step_rows, left -= args.step_rows) {
    const bool exists = first_row < args.step_rows && row < args.rows;
    const int64_t place = row * args.heads + head;
    float sum = 0.f, second_sum = 0.f;
    for (int64_t i = int64_t{lane} * kVector; exists && i < args.dim; i += int64_t{lanes} * kVector) {
      float values[kVector], attn[kVector];
      Fragment<T, kVector>::load(static_cast<const T*>(args.feat) + place * args.dim + i).widen(values);
      if (args.narrow_attn != nullptr) {
        Fragment<T, kVector>::load(static_cast<const T*>(args.narrow_attn) + head * args.dim + i).widen(attn);
      } else {
        load_attn(args.attn[0] + head * args.dim + i, attn);
      }
#pragma unroll
      for (int k = 0; k < kVector; ++k) sum = fmaf(values[k], attn[k], sum);
      if (!has_second) continue;
      load_attn(args.attn[1] + head * args.dim + i, attn);
#pragma unroll
      for (int k = 0; k < kVector; ++k) second_sum = fmaf(values[k], attn[k], second_sum);
    }
    for (int half = lanes / 2; half > 0; half /= 2) {
      sum += __shfl_xor_sync(kFullMask, sum, half);
      second_sum += __shfl_xor_sync(kFullMask, second_sum, half);
    }
    if (!exists || lane != 0) continue;
    args.logits[0][place] = args.scale * sum;
    if (has_second) args.logits[1][place] = second_sum;
  }
}

// ---- backward: a thread takes some columns of every num_parts * block_rows-th row, and the threads of a block that
// have the same columns sum what they found of the gradient of attn

struct BackwardArgs {
  const void* feat;
  const float* attn[kMostHeadLogits];
  const float* grad[kMostHeadLogits];
  const void* upstream;
  void* grad_feat;
  float* parts;
  int64_t rows, heads, dim;
  int64_t num_parts;
  int count;
  int log2_columns;  // threads of a block beside one another
};

// The sums over the rows of the block, of the thread's own columns, in a fixed order; of the block's first row.
template <int kVector>
__device__ void sum_over_block_rows(float (&sums)[kVector], int log2_columns) {
  __shared__ float shared[kVector][kThreads];
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int k = 0; k < kVector; ++k) shared[k][thread] = sums[k];
  for (int half = kThreads / 2; half >= 1 << log2_columns; half /= 2) {
    __syncthreads();
    if (thread >= half) continue;
#pragma unroll
    for (int k = 0; k < kVector; ++k) shared[k][thread] = sums[k] += shared[k][thread + half];
  }
  __syncthreads();  // before the next sums
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads) head_logits_backward_kernel(const BackwardArgs args) {
  const int columns = 1 << args.log2_columns, block_rows = kThreads >> args.log2_columns;
  const int64_t part = blockIdx.x % args.num_parts, slice = blockIdx.x / args.num_parts;
  const int64_t len = args.heads * args.dim;
  const int64_t column = (slice * columns + static_cast<int>(threadIdx.x) % columns) * kVector;
  const bool exists = column < len;
  const int64_t head = exists ? column / args.dim : 0;
  const bool has_second = args.count == 2;
  const float *const grad = args.grad[0], *const second_grad = has_second ? args.grad[1] : nullptr;
  float attn[kVector] = {}, second_attn[kVector] = {}, sums[kVector] = {}, second_sums[kVector] = {};
  if (exists && args.grad_feat != nullptr) {
    load_attn(args.attn[0] + column, attn);
    if (has_second) load_attn(args.attn[1] + column, second_attn);
  }
  const int64_t own_row = part * block_rows + (threadIdx.x >> args.log2_columns);
  for (int64_t row = own_row; exists && row < args.rows; row += args.num_parts * block_rows) {
    const int64_t place = row * len + column;
    const float of_row = grad != nullptr ? __ldg(grad + row * args.heads + head) : 0.f;
    const float second_of_row = second_grad != nullptr ? __ldg(second_grad + row * args.heads + head) : 0.f;
    if (args.parts != nullptr) {
      const auto feat = Fragment<T, kVector>::load_streaming(static_cast<const T*>(args.feat) + place);
      feat.multiply_add_to(of_row, sums);
      feat.multiply_add_to(second_of_row, second_sums);
    }
    if (args.grad_feat != nullptr) {
      float values[kVector] = {};
      if (args.upstream != nullptr) {
        Fragment<T, kVector>::load_streaming(static_cast<const T*>(args.upstream) + place).widen(values);
      }
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        values[k] = fmaf(of_row, attn[k], fmaf(second_of_row, second_attn[k], values[k]));
      }
      store_rounded(static_cast<T*>(args.grad_feat) + place, values);
    }
  }
  if (args.parts == nullptr) return;
  sum_over_block_rows(sums, args.log2_columns);
  if (has_second) sum_over_block_rows(second_sums, args.log2_columns);
  if (!exists || static_cast<int>(threadIdx.x) >= columns) return;
  float* const target = args.parts + part * args.count * len + column;
  store_rounded(target, sums);
  if (has_second) store_rounded(target + len, second_sums);
}

// ---- launchers

template <typename T, int kVector>
cudaError_t run(ForwardArgs args, cudaStream_t stream) {
  const int64_t vectors = ceil_div(args.dim, kVector);
  args.log2_lanes = log2_ceil(vectors < kWarpSize ? vectors : kWarpSize);
  // Enough to fill any GPU, and so few that a group has some rows.
  constexpr int64_t kMostBlocks = 2048, kRowsOfGroup = 4;
  const int64_t groups_of_block = kThreads >> args.log2_lanes;
  const int64_t wanted = ceil_div(ceil_div(args.rows, kRowsOfGroup) * args.heads, groups_of_block);
  const int64_t least = ceil_div(args.heads, groups_of_block);
  const int64_t most = wanted < kMostBlocks ? wanted : kMostBlocks, blocks = most < least ? least : most;
  args.step_rows = blocks * groups_of_block / args.heads;
  return cuda::launch(head_logits_kernel<T, kVector>, blocks, kThreads, stream, args);
}

template <typename T, int kVector>
cudaError_t run(BackwardArgs args, cudaStream_t stream) {
  const int64_t vectors = ceil_div(args.heads * args.dim, kVector);
  args.log2_columns = log2_ceil(vectors < kThreads ? vectors : kThreads);
  const int64_t slices = ceil_div(vectors, int64_t{1} << args.log2_columns);
  return cuda::launch(head_logits_backward_kernel<T, kVector>, slices * args.num_parts, kThreads, stream, args);
}

cudaError_t run(const ForwardArgs& args, DType type, cudaStream_t stream) {
  if (args.rows * args.heads == 0) return cudaSuccess;
  if (type == DType::kDouble) return cudaErrorInvalidValue;
  return with_type(type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    constexpr int kVector = kMaxAccessBytes / static_cast<int>(sizeof(T));
    const bool vectors = args.dim % kVector == 0 &&
                         are_aligned(kMaxAccessBytes, args.feat, args.attn[0], args.attn[1], args.narrow_attn);
    return vectors ? run<T, kVector>(args, stream) : run<T, 1>(args, stream);
  });
}

}  // namespace

cudaError_t head_logits(const HeadLogitsArgs& args, const Launch& launch) {
  ForwardArgs to{args.feat, {}, nullptr, {}, args.rows, args.heads, args.dim, 0, 0, 1.f};
  for (int a = 0; a < args.count; ++a) {
    to.attn[a] = static_cast<const float*>(args.attn[a]);
    to.logits[a] = static_cast<float*>(args.logits[a]);
  }
  return run(to, args.type, launch.stream);
}

cudaError_t scaled_head_logits(const HeadLogitsArgs& args, float scale, const Launch& launch) {
  auto* const logits = static_cast<float*>(args.logits[0]);
  return run({args.feat, {}, args.attn[0], {logits}, args.rows, args.heads, args.dim, 0, 0, scale}, args.type,
             launch.stream);
}

int64_t head_logits_parts(const HeadLogitsBackwardArgs& args) {
  constexpr int64_t kValues = 1 << 15, kMost = 512;
  const int64_t wanted = ceil_div(args.rows * args.heads * args.dim, kValues);
  return wanted < 1 ? 1 : wanted < kMost ? wanted : kMost;
}

cudaError_t head_logits_backward(const HeadLogitsBackwardArgs& args, const Launch& launch) {
  if (args.heads * args.dim == 0) return cudaSuccess;
  if (args.type == DType::kDouble) return cudaErrorInvalidValue;
  BackwardArgs to{args.feat, {},         {},       args.upstream,  args.grad_feat, static_cast<float*>(args.parts),
                  args.rows, args.heads, args.dim, args.num_parts, args.count,     0};
  for (int a = 0; a < args.count; ++a) {
    to.attn[a] = static_cast<const float*>(args.attn[a]);
    to.grad[a] = static_cast<const float*>(args.grad[a]);
  }
  return with_type(args.type, [&](auto t) {
    using T = TypeOf<decltype(t)>;
    constexpr int kVector = kMaxAccessBytes / static_cast<int>(sizeof(T));
    const bool vectors = args.dim % kVector == 0 && are_aligned(kMaxAccessBytes, args.feat, to.attn[0], to.attn[1],
                                                                args.upstream, args.grad_feat, args.parts);
    return vectors ? run<T, kVector>(to, launch.stream) : run<T, 1>(to, launch.stream);
  });
}

}  // namespace halfgnn::cuda
