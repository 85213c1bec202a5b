// What the kernels behind spmm.h share: how rows of features are gathered.
//
// The words are those of rows.cuh. Vectors have kVector elements, the largest access that alignment allows. A group of
// 2^log2_lanes lanes owns a slice of the row, each lane kRepeat vectors of it. A team of 2^log2_team lanes, one group
// or several, owns a piece: its groups take different edges and are combined at the end. If rows have few edges, a warp
// is several teams, so that it has as many loads in flight as for long rows. Rows much longer than the others of their
// warp wait until the teams are done. Then they get the whole warp, one by one.
#pragma once

#include <type_traits>

#include "../core/alignment.h"
#include "../core/rows.cuh"
#include "../core/scalar.cuh"
#include "../plan/work.h"

namespace halfgnn::cuda {

constexpr uint32_t kNoLine = 0xffffffffu;
// Blocks are small because a block keeps its place until its longest piece is done.
constexpr int kGatherThreads = 128;
// At most 64 registers a lane: 32 warps on a multiprocessor. Before sm_80 some of what a warp shares takes registers of
// every lane (see warp_max).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kGatherMinBlocks = 7;
#else
constexpr int kGatherMinBlocks = 8;
#endif

template <typename T, int kVectorElements, int kVectorsPerLane>
struct GatherConfig {
  using Element = T;
  static constexpr int kVector = kVectorElements;
  static constexpr int kRepeat = kVectorsPerLane;
  // Edges whose rows a lane has in flight at once: 64 bytes per lane, or 4 to 8 narrow loads.
  static constexpr int kUnroll = kRepeat >= 4 ? 2 : 4;
  static constexpr int kVectorBytes = kVector * static_cast<int>(sizeof(T));
  static_assert(kVectorBytes <= kMaxAccessBytes && (kVector & (kVector - 1)) == 0, "one access");
};

struct Gather {
  Rows rows;
  Ids feat_rows;  // the row of feat that each position reads
  const void* feat;
  int32_t num_vectors;  // of a whole row
  int32_t log2_lanes;
  int32_t log2_team;
  int32_t team_edges;    // rows of more wait for the whole warp
  uint32_t unit_blocks;  // blocks that cover all units, for one slice
};

// What a launcher knows of a gather, and how it is to be done.
struct GatherShape {
  const void* feat;
  int64_t feat_rows;
  int64_t row_bytes;
  bool by_edge;          // of edge data: every row is read once
  int64_t stream_bytes;  // per edge, beside features: ids and weights
  RowWork work;
};
struct GatherPlan {
  Gather gather;
  int64_t blocks;
  int threads;
};
// For accesses of vector_bytes. Looks at sizes alone.
GatherPlan plan_gather(const Topology& topology, const GatherShape& shape, int vector_bytes, int repeat, int unroll);

template <class Config>
GatherPlan plan_gather(const Topology& topology, const GatherShape& shape) {
  return plan_gather(topology, shape, Config::kVectorBytes, Config::kRepeat, Config::kUnroll);
}

// The slice of a row of features that a lane owns: vectors first, first + stride, ... of it. A lane that has fewer than
// kRepeat vectors, because the row ends, reads the last vector of the row again instead: loads without conditions stay
// in flight together, and its results are not stored.
template <class Config>
struct LaneSlice {
  int first;
  int stride;

  // Slices are the slowest part of the block index: all pieces for one slice before the next, so that a slice of feat
  // that fits in the L2 cache is swept while it is there.
  __device__ LaneSlice(const Gather& gather, int lane)
      : first(static_cast<int>((blockIdx.x / gather.unit_blocks * Config::kRepeat) << gather.log2_lanes) +
              (lane & ((1 << gather.log2_lanes) - 1))),
        stride(1 << gather.log2_lanes) {}
  __device__ bool has(int r, const Gather& gather) const { return first + r * stride < gather.num_vectors; }
  // The r-th vector that the lane reads.
  __device__ int vector(int r, const Gather& gather) const {
    return has(r, gather) ? first + r * stride : gather.num_vectors - 1;
  }
};

// The addresses of a lane's kRepeat elements or vectors of row 0 of an array. Those after the first are kept as their
// distance from it, which takes half the registers.
template <int kRepeat>
struct LaneSource {
  const char* first;
  uint32_t distance[kRepeat];

  // `row`: where a row starts, in bytes from row 0.
  __device__ const char* at(uint64_t row, int r) const { return r == 0 ? first + row : first + row + distance[r]; }
};

template <class Config>
__device__ LaneSource<Config::kRepeat> feat_source(const Gather& gather, const LaneSlice<Config>& slice) {
  LaneSource<Config::kRepeat> source{};
  const int first = slice.vector(0, gather);
  source.first = static_cast<const char*>(gather.feat) + int64_t{first} * Config::kVectorBytes;
#pragma unroll
  for (int r = 1; r < Config::kRepeat; ++r) {
    source.distance[r] = static_cast<uint32_t>((slice.vector(r, gather) - first) * Config::kVectorBytes);
  }
  source.first = as_computed(source.first);
  return source;
}

// Where row `index` starts, one multiply-add away from a source.
inline __device__ uint64_t row_offset(uint32_t index, uint32_t row_bytes) { return uint64_t{index} * row_bytes; }

// A lane's place in its team.
struct Team {
  int size;
  int lane;
  int group;
  int num_groups;
  int source;  // the lane of the warp that holds the ids of this group's first edge

  __device__ Team(const Gather& gather, int log2_team, int warp_lane)
      : size(1 << log2_team),
        lane(warp_lane & (size - 1)),
        group(lane >> gather.log2_lanes),
        num_groups(size >> gather.log2_lanes),
        source(warp_lane - lane + group) {}
};

// The position that lane `lane` of a team reads ids at, `offset` edges into its piece. Past the end it is the last one:
// all lanes hold ids that can be followed. Exists as long as any team of the warp has edges.
inline __device__ uint32_t id_position(const Piece& piece, int offset, int lane) {
  return piece.begin + static_cast<uint32_t>(min(offset + lane, max(piece.num_edges(), 1) - 1));
}
// Teams of a warp that have nothing to store have an empty piece without a line.
inline __device__ bool has_result(const Piece& piece) { return piece.line != kNoLine; }

// The greatest of the lanes' values. The compiler knows that it is the same for all lanes, so that what depends on it
// alone is worked out once per warp.
inline __device__ int warp_max(int value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kFullMask, value);
#else
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = max(value, __shfl_xor_sync(kFullMask, value, distance));
  }
  return __shfl_sync(kFullMask, value, 0);
#endif
}

// Edges of the teams of a warp.
struct Lengths {
  int longest, shortest;
  __device__ explicit Lengths(const Piece& piece)
      : longest(warp_max(piece.num_edges())), shortest(-warp_max(-piece.num_edges())) {}
};

// A piece per team, for rows first_row ...; returns the first lanes of the teams whose rows wait.
inline __device__ unsigned int find_team_pieces(const Gather& gather, uint32_t first_row, int lane, Piece& piece) {
  const Rows& rows = gather.rows;
  const int64_t wanted = int64_t{first_row} + (lane >> gather.log2_team);
  const int64_t row = wanted < rows.num_rows ? wanted : rows.num_rows - 1;
  const int64_t begin = rows.indptr.offset(row), degree = rows.indptr.offset(row + 1) - begin;
  const bool is_short = wanted < rows.num_rows && !rows.is_long(degree);
  const bool waits = is_short && degree > gather.team_edges;
  const bool has_result = is_short && !waits;
  piece.row = static_cast<uint32_t>(row);
  piece.line = has_result ? piece.row : kNoLine;
  piece.is_whole_row = true;
  piece.begin = has_result && degree > 0 ? static_cast<uint32_t>(begin) : 0;
  piece.end = piece.begin + (has_result ? static_cast<uint32_t>(degree) : 0);
  const bool leads = (lane & ((1 << gather.log2_team) - 1)) == 0;
  return __ballot_sync(kFullMask, waits && leads);
}

// Calls work(piece, log2_team) for all that this warp has to do. The whole warp calls it, with a piece per team.
template <class Work>
__device__ void for_each_team_piece(const Gather& gather, int lane, Work work) {
  const Rows& rows = gather.rows;
  const int64_t unit =
      static_cast<int64_t>(blockIdx.x % gather.unit_blocks) * (blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
  const bool is_slot = __any_sync(kFullMask, unit < rows.num_slots);  // of all lanes, and the compiler knows it
  const int64_t wanted_row = is_slot ? 0 : (unit - rows.num_slots) << (kLog2Warp - gather.log2_team);
  if (wanted_row >= rows.num_rows) return;  // whole warps
  const auto first_row = static_cast<uint32_t>(wanted_row);

  Piece piece;
  int log2_team = gather.log2_team;
  unsigned int waiting = 0;
  if (is_slot) {
    if (!find_piece(gather.rows, unit, lane, piece)) return;
    log2_team = kLog2Warp;
  } else {
    waiting = find_team_pieces(gather, first_row, lane, piece);
  }
  for (;;) {
    if (__any_sync(kFullMask, has_result(piece))) work(piece, log2_team);
    if (waiting == 0) return;
    const uint32_t row = first_row + ((__ffs(static_cast<int>(waiting)) - 1) >> gather.log2_team);
    waiting &= waiting - 1;
    log2_team = kLog2Warp;
    const auto begin = static_cast<uint32_t>(rows.indptr.offset(row));
    const auto end = static_cast<uint32_t>(rows.indptr.offset(int64_t{row} + 1));
    piece = {row, begin, end, row, true};
  }
}

// Splits the edges [0, ...) of a chunk, team.size at most of each team, into batches of up to kUnroll edges per group:
// batch(number of edges as a constant, whether no team ends in it as a constant, first edge).
template <int kUnroll, class Batch>
__device__ void for_each_batch(const Team& team, const Lengths& lengths, int chunk, Batch batch) {
  const int most = min(lengths.longest - chunk, team.size);
  const int least = min(lengths.shortest - chunk, team.size);
  int start = 0;
  for (; start + kUnroll * team.num_groups <= least; start += kUnroll * team.num_groups) {
    batch(std::integral_constant<int, kUnroll>{}, std::true_type{}, start);
  }
  while (start < most) {
    const int groups_left = most - start;
    if (kUnroll > 2 && groups_left > 2 * team.num_groups) {
      batch(std::integral_constant<int, kUnroll>{}, std::false_type{}, start);
      start += kUnroll * team.num_groups;
    } else if (groups_left > team.num_groups) {
      batch(std::integral_constant<int, 2>{}, std::false_type{}, start);
      start += 2 * team.num_groups;
    } else {
      batch(std::integral_constant<int, 1>{}, std::false_type{}, start);
      start += team.num_groups;
    }
  }
}

}  // namespace halfgnn::cuda
