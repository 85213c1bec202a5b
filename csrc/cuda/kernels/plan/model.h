// What planners assume of a GPU and of the kernels: all numbers that the choice of slices, lanes and units depends on,
// each with its unit and where it is from.
//
//   measured elsewhere  by others, on the GPUs that are named (docs/tuning.md, "Predicted times")
//   arithmetic          follows from sizes of the hardware or of the kernels
//   guess               nobody has measured it
//
// No number was fitted to a run of these kernels: docs/tuning.md lists the predictions to check first. Numbers by which
// rows are cut into pieces and shared among warps are with the walks over them, in core/rows.cuh and
// core/row_units.cuh.
//
// Planners are functions of sizes and a Device. But for device.cu, this folder uses nothing of CUDA, so that tests need
// neither a GPU nor a toolkit.
#pragma once

#include <cstdint>

namespace halfgnn::cuda {

struct Device {
  int64_t l2_bytes = 0;      // of the L2 cache; 0: unknown, and nothing is taken to stay in it
  int64_t memory_bytes = 0;  // of the device's memory, free or not; 0: unknown
};

// ---- The L2 cache.

// Bandwidth of the L2 cache / bandwidth of device memory. Measured elsewhere: H200 9.6 / 4.3 TB/s = 2.2, H100 8.1 / 3.0
// TB/s = 2.7, L40 6.2.
constexpr double kCacheSpeed = 2.3;

// Which reads of gathered rows hit in a cache that is smaller than the rows.
enum class Popularity {
  kEqual,  // all rows are read equally often: the share of the rows that the cache holds
  kSkewed  // popular rows are read more often, and stay: the square root of that share
};
// How gathered rows use the cache.
struct CacheUse {
  double share;  // of the cache: the rest is for what streams through it
  Popularity popularity;
};
// Both are guesses. Measured elsewhere: reads of an H200 keep their speed up to 44 of its 50 MB (0.88) if nothing
// streams.
constexpr CacheUse kCacheOfSums{0.75, Popularity::kSkewed};
// For kernels that are sliced by whole heads alone. The popularity differs from that of sums by accident: no
// measurement speaks for it.
constexpr CacheUse kCacheOfHeads{0.75, Popularity::kEqual};
// A guess: results as large as the gathered rows stream through the cache, so that it keeps fewer rows. Popularity does
// not matter: slices either fit or are not made.
constexpr CacheUse kCacheOfElementwise{0.6, Popularity::kEqual};

// ---- Slices whose costs are compared: sums, maxima, GAT. Costs are in bytes of device memory.

// Slices must cost less than this share of the widest slice's cost. A guess of the model's error: a tenth.
constexpr double kSlicingGain = 0.9;
// Bytes that a slice reads of a row, at least. Arithmetic: an access of device memory is two sectors of 32 bytes.
constexpr int64_t kMinSliceBytes = 64;
// Bytes per warp and slice: what memory could move while a warp finds its rows and starts. Arithmetic, of a guess: 150
// instructions of a warp, while an H100 issues 0.9 T instructions/s and moves 3.0 TB/s. Machine code has about 400.
constexpr double kWarpBytes = 512;
// Bytes per edge and head of GAT, read from the L2 cache: of a logit's sector of 32 bytes, and for the instructions of
// its weight. A guess.
constexpr double kPairBytes = 24;

// ---- Slices of whole heads: dots, gradients of weighted sums, GATv2 and dot attention.

// Bytes per edge and slice. Arithmetic: 8 for ids, and a sector of 32 for results that fill a part of it.
constexpr int64_t kHeadSliceBytes = 40;
// Misses must cost more than this many times the sweeps. A guess.
constexpr double kHeadSlicingGain = 2;

// ---- Slices of operators without broadcasting.

// Bytes that a slice reads of a row, at least. Arithmetic: a line of the caches.
constexpr int64_t kMinElementwiseBytes = 128;
// Edges per gathered row from which rows are read again often enough. Arithmetic: with fewer than two, half of the
// reads are the first of a row and miss in any case.
constexpr int64_t kMinReads = 2;
// Vectors of a slice, at most. Arithmetic: the (edge, vector) pairs of 128 edges are counted in 32 bits.
constexpr int64_t kMaxSliceVectors = 1 << 20;

// ---- Teams of sums and maxima.

// Batches of a team, before its row waits for the whole warp. A guess.
constexpr int kTeamBatches = 4;
// Edges per warp from which blocks have kLongUnitThreads threads: a block keeps its place until its longest piece is
// done. A guess.
constexpr int64_t kLongUnitEdges = 64;
constexpr int kLongUnitThreads = 64;

// ---- Units of edge-wise kernels: how many edges a warp takes.

// Warps of a launch, from which each takes more edges so that fewer search for their first row. Arithmetic, of a guess:
// four waves. An H100 holds 132 x 32 warps of 64 registers.
constexpr int64_t kManyWarps = 1 << 14;
// Edges per warp, at most. A guess.
constexpr int64_t kMaxUnitEdges = 1024;
// (edge, vector) pairs per warp and slice of an operator without broadcasting, at most. A guess.
constexpr int64_t kMaxUnitPairs = 1 << 12;
// The same for terms and copies of rows, which take more only from twice as many warps. A guess.
constexpr int64_t kManyTermWarps = 1 << 15, kManyCopyWarps = 1 << 15;
// Chunks of 32 edges per warp, and batches of accesses per warp of a copy, at most. Guesses.
constexpr int64_t kMaxTermChunks = 8, kMaxCopyBatches = 8;

}  // namespace halfgnn::cuda
