// What planners assume of a GPU and of the kernels: all numbers that the choice of slices, lanes and units depends on,
// each with its unit and where it is from.
//
//   measured elsewhere  by others, on the GPUs that are named (docs/tuning.md, "Predicted times")
//   arithmetic          follows from sizes of the hardware or of the kernels
//   guess               nobody has measured it
//
// Numbers that say "measured on" are from runs of these kernels; docs/tuning.md has the predictions that those runs
// checked, and the ones that no run has checked yet. Facts of GPUs are in gpus.h, instructions of kernels in work.h.
// Numbers by which rows are cut into pieces and shared among warps are with the walks over them, in core/rows.cuh and
// core/row_units.cuh.
//
// Planners are functions of sizes and a Device. But for device.cu, this folder uses nothing of CUDA, so that tests need
// neither a GPU nor a toolkit.
#pragma once

#include <cstdint>

namespace halfgnn::cuda {

// What a GPU does in a second.
struct Rates {
  double cache;   // bytes that multiprocessors read from the L2 cache
  double memory;  // bytes of device memory that a copy reads and writes
  double issue;   // instructions of warps
};

struct Device {
  int64_t l2_bytes = 0;      // of the L2 cache; 0: unknown, and nothing is taken to stay in it
  int64_t memory_bytes = 0;  // of the device's memory, free or not; 0: unknown
  int64_t multiprocessors = 132;
  Rates rates{8.1e12, 3.0e12, 132 * 4 * 1.7e9};  // an H100's (gpus.h), until others are known
};

// ---- The L2 cache.

// How gathered rows use the cache.
struct CacheUse {
  double share;  // of the cache: the rest is for what streams through it
  double skew;   // the row that is read i-th most often is read in proportion to i^-skew; 0: all equally often
};
// The share is a guess. Measured elsewhere: reads of an H200 keep their speed up to 44 of its 50 MB (0.88) if nothing
// streams. The skew is in the middle of those of the graphs of benchmarks/graphs.py, 0.24 to 0.44, which give them the
// largest degrees of the data sets that they are named after.
constexpr CacheUse kCacheOfRows{0.75, 0.36};
// A guess: results as large as the gathered rows stream through the cache, so that it keeps fewer rows. Skew does not
// matter: slices either fit or are not made.
constexpr CacheUse kCacheOfElementwise{0.6, 0};

// ---- Slices: of sums, maxima, dots and attention.

// Slices must take less than this share of the widest slice's time. A guess of the model's error: a tenth.
constexpr double kSlicingGain = 0.9;
// How many times as long as they should instructions take, since no multiprocessor issues one in every cycle. Measured
// on an H200: 1.25 and more where they are the bound. With 1, four slices of dot attention's 8 x 16 were chosen on
// reddit-size, which took 1.15 times as long as one.
constexpr double kIssueDelay = 1.25;
// What is expected of a kernel lies between its bound and the sum of its parts: an exponent (1: parts do not overlap;
// infinite: perfectly), and how many times as long as they should instructions take. Both are fitted to what kernels
// took on an H200, of which 27 in 32 are within 15 % of it (laboratory/plan/test_measured.py).
constexpr double kOverlap = 2.5, kWait = 1.2;
// Two phases must take less than this share of the time of one: dots and then the attention, or a slice that puts
// weights in order for those behind it. Nearer to 1 than kSlicingGain, since expected times err alike for both: of four
// ratios, an H200 took 0.84 to 1.05 of what is expected (laboratory/plan/test_dot_phases.py).
constexpr double kPhasesGain = 0.95;
// What one launch more takes, in seconds. A guess: that of a kernel without work.
constexpr double kLaunchTime = 4e-6;
// What an access of device memory or of the L2 cache moves at least. Arithmetic.
constexpr int64_t kSectorBytes = 32;
// What an access of device memory moves at least. Arithmetic: two sectors. Measured on an H200: 115 million scattered
// weights of 2 bytes lengthen a sum by 1.8 ms, the time of 67 bytes for each.
constexpr int64_t kMemoryBytes = 2 * kSectorBytes;
// What a write of a part of a sector costs that is not in the L2 cache, in bytes of a stream: memory reads the sector
// before it writes it, at a place far from the last. Measured on an H200: 300 to 420 in the backward of u_mul_e_sum.
constexpr int64_t kPartialWriteBytes = 8 * kSectorBytes;
// Bytes that a slice reads of a row, at least. Arithmetic: an access of device memory.
constexpr int64_t kMinSliceBytes = kMemoryBytes;
// Bytes that kernels of whole heads stream per edge and slice: dots, gradients of weighted sums, GATv2 and dot
// attention. Arithmetic: 8 for ids, and a sector for results that fill a part of it.
constexpr int64_t kHeadSliceBytes = 8 + kSectorBytes;

// ---- Records of edges, of GATv2's backward (edge_records.h).

// They take at most one of so many parts of the device's memory. A guess: features and activations need the rest.
constexpr int64_t kRecordMemoryParts = 16;
// Vectors of a head that has records, at least. Arithmetic: four lanes share it then, so that each of them owns one of
// the four edges that a group has in flight.
constexpr int64_t kMinRecordVectors = 3;

// ---- Slices of operators without broadcasting.

// Bytes that a slice reads of a row, at least. Arithmetic: a line of the caches.
constexpr int64_t kMinElementwiseBytes = 128;
// Edges per gathered row from which rows are read again often enough. Arithmetic: with fewer than two, half of the
// reads are the first of a row and miss in any case.
constexpr int64_t kMinReads = 2;
// Vectors of a slice, at most. Arithmetic: the (edge, vector) pairs of 128 edges are counted in 32 bits.
constexpr int64_t kMaxSliceVectors = 1 << 20;

// ---- Teams of sums and maxima.

// Batches in which a team walks an average row, at most. Arithmetic: a team of half as many lanes takes one batch more,
// but does not add up the sums of two halves, and does what is done once per row for twice as many rows.
constexpr int kRowBatches = 2;
// Batches of a team, before its row waits for the whole warp. A guess.
constexpr int kTeamBatches = 4;
// Edges per warp from which blocks have kLongUnitThreads threads: a block keeps its place until its longest piece is
// done. A guess.
constexpr int64_t kLongUnitEdges = 64;
constexpr int kLongUnitThreads = 64;

// ---- Units of edge-wise kernels: how many edges a warp takes.

// Warps of a launch, from which each takes more edges so that fewer search for their first row. A guess: four waves. A
// multiprocessor holds 32 warps of 64 registers.
inline int64_t many_warps(const Device& device) { return 4 * 32 * device.multiprocessors; }
// Edges per warp, at most. A guess.
constexpr int64_t kMaxUnitEdges = 1024;
// (edge, vector) pairs per warp and slice of an operator without broadcasting, at most. A guess.
constexpr int64_t kMaxUnitPairs = 1 << 12;
// The same for terms and copies of rows, which take more only from twice as many warps. A guess.
constexpr int64_t kManyTermWarps = 1 << 15, kManyCopyWarps = 1 << 15;
// Chunks of 32 edges per warp, and batches of accesses per warp of a copy, at most. Guesses.
constexpr int64_t kMaxTermChunks = 8, kMaxCopyBatches = 8;

}  // namespace halfgnn::cuda
