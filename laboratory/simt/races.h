// Finds races over shared memory: two threads of a block touch the same bytes, at least one of them writes, and no
// barrier orders them. __syncthreads orders the block, __syncwarp the warp; shuffles and votes order nothing. A copy
// that is under way races with every access to its target, with those of its own thread too.
//
// AddressSanitizer's checks of accesses are calls (build.py), and races.cpp is called in their place. Two limits: an
// access at a constant place of a __shared__ variable has no check; and of several accesses to one place in a row
// only the first has one, so a store after a load is found by the value that it changed (end_turn).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace simt {

struct Access {
  uintptr_t address;
  size_t bytes;
  bool is_store;
  const void* pc;
  enum : uint8_t { kIsNone, kBegins, kEnds } copy = kIsNone;  // a copy is a write where it begins and where it ends
};

// The stack of the lane that runs.
struct Unwatched {
  uintptr_t begin;
  size_t size;
};
extern Unwatched unwatched;

struct Race {
  Access access;
  int other_warp;
  bool other_is_store;
  const void* other_pc;
  bool other_is_copy = false;  // that is under way
  explicit operator bool() const { return access.pc != nullptr; }
};

class Races {
 public:
  // Of a launch whose shared memory is there. Nothing is watched until then, nor after end_launch.
  void begin_launch(const char* segment, size_t bytes);
  void end_launch();
  void begin_block() {
    ++block_;
    sync_block();
  }
  void sync_block() { ++block_epoch_; }
  void sync_warp(int warp) { ++warp_epochs_[warp]; }
  // The race that an access of `thread` to shared memory makes, if it makes one.
  Race access(int thread, const Access& access);
  // To be called when a thread that ran is about to be suspended, or has ended.
  Race end_turn(int thread);

 private:
  static constexpr size_t kGranule = 2;  // bytes of the smallest elements in shared memory
  static constexpr size_t kMostBytes = 16;

  // Who touched two bytes since the last barrier of the block.
  struct Cell {
    uint64_t block_epoch;
    uint64_t write_epoch, read_epoch;  // of the warp
    const void* write_pc;
    const void* read_pc;
    uint64_t copied_in;  // the block of which a copy is under way
    uint32_t reading_warps;
    uint32_t reading_lanes;  // of the last of those warps, since its last barrier
    int16_t writer;          // the last thread that wrote; -1: none
    int16_t last_reader;     // the last warp that read; -1: none
  };
  struct Loaded {
    Access access;
    char value[kMostBytes];
  };

  Race touch(Cell& cell, int thread, const Access& access) const;

  uintptr_t begin_ = 0;
  std::vector<Cell> cells_;
  std::vector<Loaded> loaded_;  // by the thread that runs, since it was resumed
  uint64_t block_epoch_ = 1;
  uint64_t block_ = 0;  // a number that no other block has
  uint64_t warp_epochs_[32] = {};
};

}  // namespace simt
