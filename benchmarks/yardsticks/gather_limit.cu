// The kernel behind gather_limit.h. As in an SpMM, groups of lanes take different indices, indices are loaded coalesced
// and one step ahead, and tiles of columns are the slowest part of the grid. Rows play no part, so all warps have equal
// work and as many loads in flight as the registers hold.

#include "gather_limit.h"

#include "../../csrc/cuda/kernels/core/ids.cuh"

namespace halfgnn::cuda {
namespace {

constexpr int kVectorBytes = 16;
constexpr int kWarps = 4;
constexpr int kEdges = 8;      // loads that a lane has in flight
constexpr int kWarpIds = 128;  // indices of a warp

struct KernelArgs {
  Ids indices;
  int64_t num_indices;
  const char* feat;
  uint32_t* words;
  uint32_t row_bytes;
  int32_t num_vectors;   // of a row
  int32_t tile_vectors;  // of a tile
  int32_t log2_lanes;    // of the group that covers a tile
  uint32_t num_warps;    // for one tile
};

__device__ void mix(uint4& mixed, const uint4& word) {
  mixed.x ^= word.x;
  mixed.y ^= word.y;
  mixed.z ^= word.z;
  mixed.w ^= word.w;
}

// A vector of kEdges rows, if there are as many: those that every num_groups-th of the warp's ids names, from `edge`
// on. Past the last its row is read again, from the cache: loads without conditions stay in flight together.
template <int kEdges, bool kFull>
__device__ void gather_batch(const char* source, uint32_t row_bytes, uint32_t ids, int edge, int num_groups, int count,
                             uint4& mixed) {
  uint4 vectors[kEdges];
#pragma unroll
  for (int u = 0; u < kEdges; ++u) {
    const int from = edge + u * num_groups;
    const uint32_t row = __shfl_sync(kFullMask, ids, kFull || from < count ? from : count - 1);
    vectors[u] = __ldg(reinterpret_cast<const uint4*>(source + static_cast<uint64_t>(row) * row_bytes));
  }
#pragma unroll
  for (int u = 0; u < kEdges; ++u) {
    if (kFull || edge + u * num_groups < count) mix(mixed, vectors[u]);
  }
}

// What the lane's vectors of rows begin ... end - 1 of the indices mix to. The whole warp takes part.
__device__ uint4 gather(const KernelArgs& args, const char* source, int64_t begin, int64_t end, int lane) {
  const int group = lane >> args.log2_lanes, num_groups = kWarpSize >> args.log2_lanes;
  uint4 mixed = make_uint4(0, 0, 0, 0);
  uint32_t next = begin + lane < end ? args.indices.id(begin + lane) : 0;
  for (int64_t position = begin; position < end; position += kWarpSize) {
    const uint32_t ids = next;
    const int64_t ahead = position + kWarpSize + lane;
    next = ahead < end ? args.indices.id(ahead) : 0;
    const int count = static_cast<int>(end - position < kWarpSize ? end - position : kWarpSize);
    if (count == kWarpSize && num_groups * kEdges <= kWarpSize) {
      for (int edge = group; edge < kWarpSize; edge += kEdges * num_groups) {
        gather_batch<kEdges, true>(source, args.row_bytes, ids, edge, num_groups, count, mixed);
      }
    } else {  // the last indices, or rows of so few vectors that fewer loads cover all ids
      for (int edge = group; edge - group < count; edge += 2 * num_groups) {
        gather_batch<2, false>(source, args.row_bytes, ids, edge, num_groups, count, mixed);
      }
    }
  }
  return mixed;
}

__global__ void __launch_bounds__(kWarps* kWarpSize, 7) gather_limit_kernel(const KernelArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int tile = static_cast<int>(warp / args.num_warps);
  const int first = tile * args.tile_vectors;
  const int rest = args.num_vectors - first;
  if (rest <= 0) return;  // whole warps, past the last tile
  const int count = rest < args.tile_vectors ? rest : args.tile_vectors;
  const int wanted = lane & ((1 << args.log2_lanes) - 1);
  const bool counted = wanted < count;  // the others repeat the load of the last vector
  const char* source = args.feat + static_cast<int64_t>(first + (counted ? wanted : count - 1)) * kVectorBytes;

  const int64_t begin = warp % args.num_warps * kWarpIds;
  const int64_t end = begin + kWarpIds < args.num_indices ? begin + kWarpIds : args.num_indices;
  const uint4 mixed = gather(args, source, begin, end, lane);
  uint32_t word = counted ? mixed.x ^ mixed.y ^ mixed.z ^ mixed.w : 0;
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    word ^= __shfl_xor_sync(kFullMask, word, distance);
  }
  if (lane == 0) args.words[warp] = word;
}

}  // namespace

int64_t gather_limit_words(const GatherLimitArgs& args) {
  return ceil_div(args.row_bytes, args.tile_bytes) * ceil_div(args.num_indices, kWarpIds);
}

cudaError_t gather_limit(const GatherLimitArgs& args, const Launch& launch) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  const bool valid = args.row_bytes % kVectorBytes == 0 && args.row_bytes <= most && args.tile_bytes > 0 &&
                     args.tile_bytes % kVectorBytes == 0 && args.tile_bytes <= kWarpSize * kVectorBytes &&
                     args.num_indices <= std::numeric_limits<uint32_t>::max();
  if (!valid) return cudaErrorInvalidValue;
  KernelArgs kernel{{args.indices, args.is_int64}, args.num_indices, static_cast<const char*>(args.feat), args.words};
  kernel.row_bytes = static_cast<uint32_t>(args.row_bytes);
  kernel.num_vectors = static_cast<int32_t>(args.row_bytes / kVectorBytes);
  kernel.tile_vectors = static_cast<int32_t>(args.tile_bytes / kVectorBytes);
  kernel.log2_lanes = log2_ceil(kernel.tile_vectors < kernel.num_vectors ? kernel.tile_vectors : kernel.num_vectors);
  kernel.num_warps = static_cast<uint32_t>(ceil_div(args.num_indices, kWarpIds));
  const int64_t blocks = ceil_div(gather_limit_words(args), kWarps);
  return halfgnn::cuda::launch(gather_limit_kernel, blocks, kWarps * kWarpSize, launch.stream, kernel);
}

}  // namespace halfgnn::cuda
