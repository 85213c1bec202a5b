// The kernels behind naive.h: the mathematics of each family in plain loops. A thread makes one result and walks all
// positions of its row, from indptr[row] to indptr[row + 1]. What the fast kernels do beside this is to share a row
// among lanes, to keep many rows in flight, to read 16 bytes at a time, and to read nothing twice.

#include "naive.h"

#include "../../csrc/cuda/kernels/core/launch.cuh"
#include "../../csrc/cuda/kernels/core/types.cuh"
#include "../../csrc/cuda/kernels/core/vector.cuh"

namespace halfgnn::cuda {
namespace {

constexpr int kThreads = 128;

__device__ int64_t thread_id() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

// Element i of a tensor, in fp32: all arithmetic is.
template <typename T>
__device__ float at(const void* data, int64_t i) {
  return Convert<T>::widen(static_cast<const T*>(data)[i]);
}
template <typename T>
__device__ void put(void* data, int64_t i, float value) {
  static_cast<T*>(data)[i] = Convert<T>::round(value);
}

// u_mul_e, sum: out[row, column] = sum over the row's positions of weight[position, head] * x[source, column].
template <typename T>
__global__ void naive_sum_kernel(const NaiveArgs args) {
  const int64_t columns = args.heads * args.dim, row = thread_id() / columns, column = thread_id() % columns;
  if (row >= args.num_rows) return;
  float total = 0.f;
  for (int64_t position = args.indptr[row]; position < args.indptr[row + 1]; ++position) {
    const int64_t source = args.indices[position];
    total += at<T>(args.weight, position * args.heads + column / args.dim) * at<T>(args.x, source * columns + column);
  }
  put<T>(args.out, row * columns + column, total);
}

// copy_u, max, and the sources that won, the first of equals: the backward gives them the gradient. A nan wins.
template <typename T>
__global__ void naive_max_kernel(const NaiveArgs args) {
  const int64_t columns = args.heads * args.dim, row = thread_id() / columns, column = thread_id() % columns;
  if (row >= args.num_rows) return;
  float best = 0.f;  // of rows without edges
  int32_t winner = -1;
  for (int64_t position = args.indptr[row]; position < args.indptr[row + 1]; ++position) {
    const float value = at<T>(args.x, args.indices[position] * columns + column);
    if (winner < 0 || value > best || (value != value && best == best)) {
      best = value;
      winner = args.indices[position];
    }
  }
  put<T>(args.out, row * columns + column, best);
  args.winner[row * columns + column] = winner;
}

// u_dot_v: out[position, head] = <x[source, head], y[row, head]>.
template <typename T>
__global__ void naive_dot_kernel(const NaiveArgs args) {
  const int64_t row = thread_id() / args.heads, head = thread_id() % args.heads;
  if (row >= args.num_rows) return;
  for (int64_t position = args.indptr[row]; position < args.indptr[row + 1]; ++position) {
    const int64_t source = args.indices[position];
    float dot = 0.f;
    for (int64_t i = 0; i < args.dim; ++i) {
      dot += at<T>(args.x, (source * args.heads + head) * args.dim + i) *
             at<T>(args.y, (row * args.heads + head) * args.dim + i);
    }
    put<T>(args.out, position * args.heads + head, dot);
  }
}

// The maximum of a row's logits, and the sum of exp(logit - maximum): without the maximum exp would overflow.
struct Softmax {
  float maximum = -INFINITY, sum = 0.f;

  template <typename Logit>
  __device__ Softmax(int64_t begin, int64_t end, const Logit& logit) {
    for (int64_t position = begin; position < end; ++position) maximum = fmaxf(maximum, logit(position));
    for (int64_t position = begin; position < end; ++position) sum += expf(logit(position) - maximum);
  }
  __device__ float weight(float logit) const { return expf(logit - maximum) / sum; }
};

// edge_softmax: out[position, head] = exp(weight[position, head]) over the sum of the row's.
template <typename T>
__global__ void naive_softmax_kernel(const NaiveArgs args) {
  const int64_t row = thread_id() / args.heads, head = thread_id() % args.heads;
  if (row >= args.num_rows) return;
  const auto logit = [&](int64_t position) { return at<T>(args.weight, position * args.heads + head); };
  const int64_t begin = args.indptr[row], end = args.indptr[row + 1];
  const Softmax softmax(begin, end, logit);
  for (int64_t position = begin; position < end; ++position) {
    put<T>(args.out, position * args.heads + head, softmax.weight(logit(position)));
  }
}

__device__ float leaky_relu(float x, float slope) { return x > 0.f ? x : slope * x; }

// The logit of an edge: of GAT leaky(of_src + of_dst), of GATv2 <attn, leaky(of_src + of_dst)>, of dot attention
// scale * <of_src, of_dst>.
template <typename T>
__device__ float logit_of(const NaiveArgs& args, const NaiveScore& score, int64_t source, int64_t row, int64_t head) {
  const int64_t src = source * args.heads + head, dst = row * args.heads + head;
  if (score.score == Score::kGat)
    return leaky_relu(at<T>(score.of_src, src) + at<T>(score.of_dst, dst), score.constant);
  float logit = 0.f;
  for (int64_t i = 0; i < args.dim; ++i) {
    const float u = at<T>(score.of_src, src * args.dim + i), v = at<T>(score.of_dst, dst * args.dim + i);
    logit += score.score == Score::kDot ? score.constant * u * v
                                        : at<T>(score.attn, head * args.dim + i) * leaky_relu(u + v, score.constant);
  }
  return logit;
}

struct AttentionArgs {
  NaiveArgs args;
  NaiveScore score;
};

// Attention: logits, their softmax over the row, and the sum of x[source, column] by its weights. No number of an edge
// is stored; here every column computes the logits again, the fast kernels once per head.
template <typename T>
__global__ void naive_attention_kernel(const AttentionArgs attention) {
  const NaiveArgs& args = attention.args;
  const int64_t columns = args.heads * args.dim, row = thread_id() / columns, column = thread_id() % columns;
  if (row >= args.num_rows) return;
  const auto logit = [&](int64_t position) {
    return logit_of<T>(args, attention.score, args.indices[position], row, column / args.dim);
  };
  const int64_t begin = args.indptr[row], end = args.indptr[row + 1];
  const Softmax softmax(begin, end, logit);
  float total = 0.f;
  for (int64_t position = begin; position < end; ++position) {
    total += softmax.weight(logit(position)) * at<T>(args.x, args.indices[position] * columns + column);
  }
  put<T>(args.out, row * columns + column, total);
}

// A thread for each of `results`.
template <typename Args>
cudaError_t launch_for(int64_t results, void (*kernel)(Args), const Args& args, const Launch& launch) {
  return cuda::launch(kernel, ceil_div(results, kThreads), kThreads, launch.stream, args);
}

}  // namespace

cudaError_t naive_sum(const NaiveArgs& args, const Launch& launch) {
  return with_type(args.type, [&](auto t) {
    return launch_for(args.num_rows * args.heads * args.dim, naive_sum_kernel<TypeOf<decltype(t)>>, args, launch);
  });
}

cudaError_t naive_max(const NaiveArgs& args, const Launch& launch) {
  return with_type(args.type, [&](auto t) {
    return launch_for(args.num_rows * args.heads * args.dim, naive_max_kernel<TypeOf<decltype(t)>>, args, launch);
  });
}

cudaError_t naive_dot(const NaiveArgs& args, const Launch& launch) {
  return with_type(args.type, [&](auto t) {
    return launch_for(args.num_rows * args.heads, naive_dot_kernel<TypeOf<decltype(t)>>, args, launch);
  });
}

cudaError_t naive_softmax(const NaiveArgs& args, const Launch& launch) {
  return with_type(args.type, [&](auto t) {
    return launch_for(args.num_rows * args.heads, naive_softmax_kernel<TypeOf<decltype(t)>>, args, launch);
  });
}

cudaError_t naive_attention(const NaiveArgs& args, const NaiveScore& score, const Launch& launch) {
  const AttentionArgs attention{args, score};
  return with_type(args.type, [&](auto t) {
    const int64_t results = args.num_rows * args.heads * args.dim;
    return launch_for(results, naive_attention_kernel<TypeOf<decltype(t)>>, attention, launch);
  });
}

}  // namespace halfgnn::cuda
