// The kernels behind scalar_baseline.h. Slow on purpose where the original is: loads of one element, ids that every
// thread of a row reads again, no work shared among long and short rows, types rounded in between.

#include "scalar_baseline.h"

#include "../../csrc/cuda/kernels/core/types.cuh"
#include "../../csrc/cuda/kernels/core/vector.cuh"

namespace halfgnn::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

// Arithmetic in the operands' own type: every result is rounded to it.
template <typename T>
__device__ T add(T a, T b) {
  return __hadd(a, b);
}
inline __device__ float add(float a, float b) { return a + b; }
template <typename T>
__device__ T multiply(T a, T b) {
  return __hmul(a, b);
}
inline __device__ float multiply(float a, float b) { return a * b; }

// A block is 2^log2_columns threads wide; what is left of kThreads are its rows. Blocks of one slice of columns come
// one after the other.
struct Tiles {
  int64_t rows;
  int64_t columns;
  uint32_t row_blocks;  // 32 bits: a division of 64 costs more than all else that a thread of an edge does
  int log2_columns;

  static Tiles of(int64_t rows, int64_t columns) {
    int log2_columns = 0;
    while (2 << log2_columns <= columns && 2 << log2_columns <= kThreads) ++log2_columns;
    return {rows, columns, static_cast<uint32_t>(ceil_div(rows, kThreads >> log2_columns)), log2_columns};
  }
  int64_t blocks() const { return row_blocks * ceil_div(columns, int64_t{1} << log2_columns); }

  __device__ int64_t row() const {
    return static_cast<int64_t>(blockIdx.x % row_blocks) * (kThreads >> log2_columns) + (threadIdx.x >> log2_columns);
  }
  __device__ int64_t column() const {
    const auto first = static_cast<int64_t>(blockIdx.x / row_blocks) << log2_columns;
    return first + (threadIdx.x & ((1u << log2_columns) - 1));
  }
};

template <typename T, typename Id>
struct SpmmKernelArgs {
  Tiles tiles;
  const Id* indptr;
  const Id* indices;
  const Id* edge_ids;
  const T* lhs;
  const T* rhs;
  int64_t rhs_len;
  int64_t rhs_repeat;  // elements of lhs that share one of rhs
  T* out;
  Id* arg;
};

template <typename T, typename Id, Op kOp, Reduce kReduce>
__global__ void __launch_bounds__(kThreads) scalar_spmm_kernel(const SpmmKernelArgs<T, Id> args) {
  const int64_t row = args.tiles.row(), column = args.tiles.column();
  if (row >= args.tiles.rows || column >= args.tiles.columns) return;
  const int64_t rhs_column = kOp == Op::kMul ? column / args.rhs_repeat : column;
  float result = kReduce == Reduce::kMax ? -INFINITY : 0.f;
  Id winner = 0;
  const Id begin = __ldg(args.indptr + row), end = __ldg(args.indptr + row + 1);
  for (Id i = begin; i < end; ++i) {
    const Id col = kOp == Op::kCopyRhs ? 0 : __ldg(args.indices + i);
    const Id edge = kOp == Op::kCopyLhs ? 0 : args.edge_ids == nullptr ? i : __ldg(args.edge_ids + i);
    T message;
    if constexpr (kOp != Op::kCopyRhs) message = __ldg(args.lhs + col * args.tiles.columns + column);
    if constexpr (kOp == Op::kCopyRhs) message = __ldg(args.rhs + edge * args.rhs_len + rhs_column);
    if constexpr (kOp == Op::kMul) message = multiply(message, __ldg(args.rhs + edge * args.rhs_len + rhs_column));
    const float value = Convert<T>::widen(message);
    if constexpr (kReduce == Reduce::kSum) {
      result += value;
    } else if (value > result) {
      result = value;
      winner = kOp == Op::kCopyLhs ? col : edge;
    }
  }
  if (begin == end) return;
  const int64_t at = row * args.tiles.columns + column;
  args.out[at] = add(args.out[at], Convert<T>::round(result));
  if constexpr (kReduce == Reduce::kMax) args.arg[at] = winner;
}

template <typename T, typename Id>
struct SddmmKernelArgs {
  Tiles tiles;  // rows are edges
  const Id* src;
  const Id* dst;
  Op op;
  const T* lhs;
  const T* rhs;
  Target lhs_target, rhs_target;
  int64_t reduce_len;
  T* out;

  // The first of the elements of an operand that this result is made of.
  __device__ const T* elements(const T* data, Target target, int64_t edge, int64_t column) const {
    const int64_t row = target == Target::kCol ? __ldg(src + edge) : target == Target::kRow ? __ldg(dst + edge) : edge;
    return data + (row * tiles.columns + column) * reduce_len;
  }
};

// One warp per edge and head.
template <typename T, typename Id>
__global__ void __launch_bounds__(kThreads) scalar_dot_kernel(const SddmmKernelArgs<T, Id> args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t edge =
      static_cast<int64_t>(blockIdx.x % args.tiles.row_blocks) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t head = blockIdx.x / args.tiles.row_blocks;
  if (edge >= args.tiles.rows) return;  // whole warps
  const T* x = args.elements(args.lhs, args.lhs_target, edge, head);
  const T* y = args.elements(args.rhs, args.rhs_target, edge, head);
  T sum = Convert<T>::round(0.f);
  for (int64_t i = lane; i < args.reduce_len; i += 2 * kWarpSize) {
    sum = add(sum, multiply(__ldg(x + i), __ldg(y + i)));
    if (i + kWarpSize < args.reduce_len) {
      sum = add(sum, multiply(__ldg(x + i + kWarpSize), __ldg(y + i + kWarpSize)));
    }
  }
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    sum = add(sum, __shfl_down_sync(kFullMask, sum, distance));
  }
  if (lane == 0) args.out[edge * args.tiles.columns + head] = sum;
}

// One thread per edge and result.
template <typename T, typename Id>
__global__ void __launch_bounds__(kThreads) scalar_sddmm_kernel(const SddmmKernelArgs<T, Id> args) {
  const int64_t edge = args.tiles.row(), column = args.tiles.column();
  if (edge >= args.tiles.rows || column >= args.tiles.columns) return;
  const T* x = args.elements(args.lhs, args.lhs_target, edge, column);
  const T* y = args.elements(args.rhs, args.rhs_target, edge, column);
  T result = Convert<T>::round(0.f);
  if (args.op == Op::kDot) {
    for (int64_t i = 0; i < args.reduce_len; ++i) result = add(result, multiply(__ldg(x + i), __ldg(y + i)));
  } else {
    const float a = Convert<T>::widen(__ldg(x)), b = Convert<T>::widen(__ldg(y));
    switch (args.op) {
      case Op::kAdd: result = Convert<T>::round(a + b); break;
      case Op::kSub: result = Convert<T>::round(a - b); break;
      case Op::kMul: result = Convert<T>::round(a * b); break;
      default: result = Convert<T>::round(a / b);
    }
  }
  args.out[edge * args.tiles.columns + column] = result;
}

template <typename T, typename Id, Op kOp, Reduce kReduce>
cudaError_t run_spmm(const ScalarSpmmArgs& args, cudaStream_t stream) {
  const Topology& topology = args.topology;
  SpmmKernelArgs<T, Id> kernel = {};
  kernel.tiles = Tiles::of(topology.num_rows, args.out_len);
  kernel.indptr = static_cast<const Id*>(topology.indptr);
  kernel.indices = static_cast<const Id*>(topology.indices);
  kernel.edge_ids = static_cast<const Id*>(topology.edge_ids);
  kernel.lhs = static_cast<const T*>(args.lhs.data);
  kernel.rhs = static_cast<const T*>(args.rhs.data);
  kernel.rhs_len = args.rhs.len;
  kernel.rhs_repeat = kOp == Op::kMul && args.rhs.len > 0 ? args.out_len / args.rhs.len : 1;
  kernel.out = static_cast<T*>(args.out);
  kernel.arg = static_cast<Id*>(args.arg);
  return cuda::launch(scalar_spmm_kernel<T, Id, kOp, kReduce>, kernel.tiles.blocks(), kThreads, stream, kernel);
}

template <typename T, typename Id>
cudaError_t choose_spmm(const ScalarSpmmArgs& args, cudaStream_t stream) {
  const bool max = args.reduce == Reduce::kMax;
  if (!max && args.reduce != Reduce::kSum) return cudaErrorInvalidValue;
  switch (args.op) {
    case Op::kCopyLhs:
      return max ? run_spmm<T, Id, Op::kCopyLhs, Reduce::kMax>(args, stream)
                 : run_spmm<T, Id, Op::kCopyLhs, Reduce::kSum>(args, stream);
    case Op::kCopyRhs:
      return max ? run_spmm<T, Id, Op::kCopyRhs, Reduce::kMax>(args, stream)
                 : run_spmm<T, Id, Op::kCopyRhs, Reduce::kSum>(args, stream);
    case Op::kMul: return max ? cudaErrorInvalidValue : run_spmm<T, Id, Op::kMul, Reduce::kSum>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

template <typename T, typename Id>
cudaError_t run_sddmm(const ScalarSddmmArgs& args, cudaStream_t stream) {
  SddmmKernelArgs<T, Id> kernel = {};
  kernel.tiles = Tiles::of(args.num_edges, args.out_len);
  kernel.src = static_cast<const Id*>(args.src);
  kernel.dst = static_cast<const Id*>(args.dst);
  kernel.op = args.op;
  kernel.lhs = static_cast<const T*>(args.lhs.data);
  kernel.rhs = static_cast<const T*>(args.rhs.data);
  kernel.lhs_target = args.lhs.target;
  kernel.rhs_target = args.rhs.target;
  kernel.reduce_len = args.reduce_len;
  kernel.out = static_cast<T*>(args.out);
  if (args.op != Op::kDot || args.reduce_len < kWarpSize) {
    return cuda::launch(scalar_sddmm_kernel<T, Id>, kernel.tiles.blocks(), kThreads, stream, kernel);
  }
  kernel.tiles.row_blocks = static_cast<uint32_t>(ceil_div(args.num_edges, kWarps));
  return cuda::launch(scalar_dot_kernel<T, Id>, kernel.tiles.row_blocks * args.out_len, kThreads, stream, kernel);
}

// run(Type<T>, Type<Id>) of the types.
template <typename Run>
cudaError_t with_types(DType type, bool is_int64, const Run& run) {
  if (type == DType::kDouble) return cudaErrorInvalidValue;
  return with_type(type, [&](auto t) { return is_int64 ? run(t, Type<int64_t>{}) : run(t, Type<int32_t>{}); });
}

}  // namespace

cudaError_t scalar_spmm(const ScalarSpmmArgs& args, const Launch& launch) {
  return with_types(reads_lhs(args.op) ? args.lhs.type : args.rhs.type, args.topology.is_int64, [&](auto t, auto id) {
    return choose_spmm<TypeOf<decltype(t)>, TypeOf<decltype(id)>>(args, launch.stream);
  });
}

cudaError_t scalar_sddmm(const ScalarSddmmArgs& args, const Launch& launch) {
  return with_types(args.lhs.type, args.is_int64, [&](auto t, auto id) {
    return run_sddmm<TypeOf<decltype(t)>, TypeOf<decltype(id)>>(args, launch.stream);
  });
}

}  // namespace halfgnn::cuda
