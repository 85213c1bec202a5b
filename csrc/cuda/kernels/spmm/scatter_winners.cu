// The kernels that add the gradients of maxima and minima to the sources of their winners, for copy_reduce_backward.
//
// Sums are exact, so their order does not matter, and each is rounded once: an fp16 number is a multiple of 2^-24 below
// 2^16, and sums of these are counted in 64 bits (plan/winners.h). An infinity or a nan sets a flag instead, which
// stays set. Numbers of bfloat16 and fp32 reach from 2^-149 to 2^128, which no such counter holds, and their gradients
// are not made coarser to fit: they are gathered.

#include "../core/ids.cuh"
#include "../core/vector.cuh"
#include "scatter_winners.h"

namespace halfgnn::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kUnits = 16777216.f;  // 2^24 in 1
enum Flag : uint32_t { kPlusInfinity = 1, kMinusInfinity = 2, kNan = 4 };

// A slice of the columns.
struct SliceArgs {
  int64_t rows;  // nodes, or sources
  int32_t dim;
  int32_t first;       // column
  int32_t log2_lanes;  // threads that share a row
  int32_t columns;
  unsigned long long* sums;  // of sources: rows of `columns`
  uint32_t* flags;           // kFlagBits for each of them
};

// What a thread has of a slice: kVector columns of a row.
template <int kVector>
struct SlicePart {
  int64_t row;
  int32_t column;  // of the slice
  bool exists;

  __device__ explicit SlicePart(const SliceArgs& args) {
    const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    row = thread >> args.log2_lanes;
    column = static_cast<int32_t>(thread - (row << args.log2_lanes)) * kVector;
    exists = row < args.rows && column < args.columns && args.first + column < args.dim;
  }
};

struct AddArgs {
  SliceArgs slice;
  Ids indptr;
  const void* sources;   // of in-edges
  const void* edge_ids;  // null: in-edges are in the order of edge data
  bool is_int64;
  uint32_t num_edges;
  const __half* grad;
  const int32_t* winners;

  // Ids that are read again.
  __device__ uint32_t id(const void* ids, uint32_t position) const {
    const char* low_word = static_cast<const char*>(ids) + uint64_t{position} * (is_int64 ? 8 : 4);
    return __ldg(reinterpret_cast<const unsigned int*>(low_word));
  }
};

constexpr uint32_t kNoPosition = 0xffffffffu;

// The in-edges of a node.
struct InEdges {
  uint32_t begin, end;

  __device__ bool has(uint32_t position) const { return position - begin < end - begin; }
  // The edge `winner` among them if their ids rise, as they do in the adjacency of a list of edges.
  __device__ uint32_t search(const AddArgs& args, uint32_t winner) const {
    uint32_t low = begin, high = end;
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (args.id(args.edge_ids, middle) < winner) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < end && args.id(args.edge_ids, low) == winner ? low : kNoPosition;
  }
  // The same whatever their order, with all lanes of the warp, one winner after the other.
  __device__ static uint32_t search_all(const AddArgs& args, InEdges edges, uint32_t winner, bool wanted) {
    const auto lane = static_cast<uint32_t>(threadIdx.x % kWarpSize);
    uint32_t found = kNoPosition;
    for (unsigned int left = __ballot_sync(kFullMask, wanted); left != 0; left &= left - 1) {
      const int of_lane = __ffs(static_cast<int>(left)) - 1;
      const uint32_t begin = __shfl_sync(kFullMask, edges.begin, of_lane);
      const uint32_t end = __shfl_sync(kFullMask, edges.end, of_lane);
      const uint32_t edge = __shfl_sync(kFullMask, winner, of_lane);
      for (uint32_t chunk = begin; chunk < end; chunk += kWarpSize) {
        const uint32_t position = chunk + lane;
        const bool is_it = position < end && args.id(args.edge_ids, position) == edge;
        const unsigned int at = __ballot_sync(kFullMask, is_it);
        if (at == 0) continue;
        if (static_cast<int>(lane) == of_lane) found = chunk + static_cast<uint32_t>(__ffs(static_cast<int>(at)) - 1);
        break;
      }
    }
    return found;
  }
};

template <int kVector>
__global__ void __launch_bounds__(kThreads) add_winners_kernel(const AddArgs args) {
  const SlicePart<kVector> part(args.slice);
  InEdges edges{0, 0};
  float grad[kVector] = {}, winners[kVector] = {};
  if (part.exists) {
    edges = {static_cast<uint32_t>(args.indptr.offset(part.row)),
             static_cast<uint32_t>(args.indptr.offset(part.row + 1))};
    const int64_t at = part.row * args.slice.dim + args.slice.first + part.column;
    Fragment<__half, kVector>::load_streaming(args.grad + at).widen(grad);
    Fragment<float, kVector>::load_streaming(args.winners + at).widen(winners);  // bits: they are moved alone
  }
  uint32_t position[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const uint32_t winner = __float_as_uint(winners[i]);
    const bool is_edge = part.exists && winner < args.num_edges;  // -1: a node without edges
    if (args.edge_ids == nullptr) {
      position[i] = is_edge && edges.has(winner) ? winner : kNoPosition;
    } else {
      position[i] = is_edge ? edges.search(args, winner) : kNoPosition;
      const uint32_t found = InEdges::search_all(args, edges, winner, is_edge && position[i] == kNoPosition);
      if (found != kNoPosition) position[i] = found;
    }
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (position[i] == kNoPosition) continue;
    const uint32_t source = args.id(args.sources, position[i]);
    const uint64_t sum = uint64_t{source} * args.slice.columns + part.column + i;
    const float value = grad[i];
    if (fabsf(value) <= 65504.f) {
      atomicAdd(args.slice.sums + sum, static_cast<unsigned long long>(static_cast<long long>(value * kUnits)));
    } else {
      const uint32_t flag = value > 0 ? kPlusInfinity : value < 0 ? kMinusInfinity : kNan;
      atomicOr(args.slice.flags + sum / kSumsPerFlagWord, flag << (sum % kSumsPerFlagWord * kFlagBits));
    }
  }
}

// A number that rounds to fp16 as the sum does: its first 24 digits, of which the last is 1 if any after it is.
__device__ float rounded_to_odd(long long sum) {
  const auto magnitude = static_cast<unsigned long long>(sum < 0 ? -sum : sum);
  const int more = 64 - 24 - __clzll(static_cast<long long>(magnitude)), dropped = more > 0 ? more : 0;
  auto kept = static_cast<uint32_t>(magnitude >> dropped);
  if ((static_cast<unsigned long long>(kept) << dropped) != magnitude) kept |= 1;
  const float unit = __uint_as_float(static_cast<uint32_t>(127 - 24 + dropped) << 23);
  const float value = static_cast<float>(kept) * unit;
  return sum < 0 ? -value : value;
}

struct StoreArgs {
  SliceArgs slice;
  __half* out;
};

template <int kVector>
__global__ void __launch_bounds__(kThreads) round_sums_kernel(const StoreArgs args) {
  const SlicePart<kVector> part(args.slice);
  if (!part.exists) return;
  const int64_t first = part.row * args.slice.columns + part.column;
  const uint32_t flags = args.slice.flags[first / kSumsPerFlagWord] >> (first % kSumsPerFlagWord * kFlagBits);
  float values[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const uint32_t flag = flags >> (i * kFlagBits) & (kPlusInfinity | kMinusInfinity | kNan);
    values[i] = rounded_to_odd(static_cast<long long>(args.slice.sums[first + i]));
    if (flag != 0) {
      const uint32_t bits = flag == kPlusInfinity ? 0x7f800000u : flag == kMinusInfinity ? 0xff800000u : 0x7fc00000u;
      values[i] = __uint_as_float(bits);
    }
  }
  store_rounded(args.out + part.row * args.slice.dim + args.slice.first + part.column, values);
}

template <int kVector, typename Args>
cudaError_t launch_slice(void (*kernel)(Args), int64_t rows, Args args, const Launch& launch) {
  args.slice.rows = rows;
  args.slice.log2_lanes = log2_ceil(ceil_div(args.slice.columns, int64_t{kVector}));
  const int64_t threads = rows << args.slice.log2_lanes;
  return cuda::launch(kernel, ceil_div(threads, int64_t{kThreads}), kThreads, launch.stream, args);
}

template <int kVector>
cudaError_t scatter_slice(const CopyReduceBackwardArgs& args, const SliceArgs& slice, const Launch& launch) {
  const Topology& in = args.in_edges;
  for (const bool of_max : {true, false}) {
    const void* grad = of_max ? args.max : args.min;
    if (grad == nullptr) continue;
    const AddArgs add{slice,
                      {in.indptr, in.is_int64},
                      in.indices,
                      in.edge_ids,
                      in.is_int64,
                      static_cast<uint32_t>(in.num_edges),
                      static_cast<const __half*>(grad),
                      of_max ? args.arg_max : args.arg_min};
    const cudaError_t status = launch_slice<kVector>(add_winners_kernel<kVector>, args.num_nodes, add, launch);
    if (status != cudaSuccess) return status;
  }
  const StoreArgs store{slice, static_cast<__half*>(args.grad_feat)};
  return launch_slice<kVector>(round_sums_kernel<kVector>, args.topology.num_rows, store, launch);
}

}  // namespace

cudaError_t scatter_winners(const CopyReduceBackwardArgs& args, const WinnersWorkspace& workspace,
                            const Launch& launch) {
  constexpr int kVector = 4;
  const bool is_wide = args.dim % kVector == 0 &&
                       are_aligned(kVector * sizeof(__half), args.max, args.min, args.grad_feat) &&
                       are_aligned(kVector * sizeof(int32_t), args.arg_max, args.arg_min);
  auto* sums = static_cast<unsigned long long*>(launch.workspace);
  auto* flags = reinterpret_cast<uint32_t*>(static_cast<char*>(launch.workspace) + workspace.sum_bytes());
  for (int64_t first = 0; first < args.dim; first += workspace.columns) {
    const SliceArgs slice{0,    static_cast<int32_t>(args.dim),          static_cast<int32_t>(first),
                          0,    static_cast<int32_t>(workspace.columns), sums,
                          flags};
    cudaError_t status = cudaMemsetAsync(sums, 0, static_cast<size_t>(workspace.bytes), launch.stream);
    if (status != cudaSuccess) return status;
    status = is_wide ? scatter_slice<kVector>(args, slice, launch) : scatter_slice<1>(args, slice, launch);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace halfgnn::cuda
