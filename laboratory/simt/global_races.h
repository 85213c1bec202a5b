// Finds races over global memory in a launch: two threads touch the same four bytes, at least one of them writes, and
// nothing orders them. Within a block barriers order them, as in races.h. Between blocks, and between warps that meet
// at no barrier, what orders a write and a later access is
//
//   the write; a barrier, if another thread goes on; __threadfence(); an atomic on some word,
//   a later atomic on that word; __threadfence(); a barrier, if another thread goes on; the access.
//
// Blocks run one after the other, in random order, so a race is found by what is missing between two accesses, not by
// the value that was read. Limits: accesses of fewer than four bytes are not looked at; of the reads of a place the
// last one is remembered; what a thread learned from one word it does not pass on by another; lanes of a warp that
// write to one place by the same instruction are not told from those that do so in two iterations; and as in races.h a
// store right after a load of the same place has no check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "races.h"

namespace simt {

struct GlobalRace {
  Access access;
  int other_thread;
  bool other_is_this_block;
  bool other_is_store;
  const void* other_pc;
  explicit operator bool() const { return access.pc != nullptr; }
};

class GlobalRaces {
 public:
  void begin_launch();
  void begin_block();
  void sync_block() { block_barrier_ = ++now_; }
  void sync_warp(int warp) { warp_barriers_[warp] = ++now_; }
  void fence(int thread);
  // The race that an access of `thread` to global memory makes, if it makes one. is_atomic: of an atomic, of which the
  // store is given alone.
  GlobalRace access(int thread, const Access& access, bool is_atomic);

 private:
  static constexpr size_t kGranule = 4, kLog2Page = 14, kMostPages = 4096, kRecent = 64;
  static constexpr int kMostThreads = 1024, kWarp = 32;

  // An access of a launch. A block's run is a number that no other block of any launch has.
  struct Event {
    uint32_t run;
    uint32_t time;
    const void* pc;
    uint16_t thread;
    bool is_atomic;
  };
  struct Cell {
    Event write, read;
  };
  using Page = std::vector<Cell>;
  // What a thread made visible by an atomic: its own writes, those of its warp and of its block, before these times.
  struct Release {
    uint32_t run;
    uint16_t thread;
    uint32_t own, of_warp, of_block;
  };
  // The first `count` releases of a word, which `thread` has learned of at a time.
  struct Acquired {
    uint64_t word;
    size_t count;
    uint16_t thread;
    uint32_t time;
  };

  Page& page_of(uint64_t number);
  bool is_ordered(const Event& event, int thread) const;
  // Lanes that write the same by one instruction, as those that share an edge's record do. CUDA defines it: one of the
  // values is kept.
  static bool is_by_same_store(const Event& one, const Event& other);
  bool is_visible(uint32_t time, int from, int thread) const;
  void synchronize(int thread, uint64_t word);

  std::unordered_map<uint64_t, Page> pages_;
  uint64_t recent_numbers_[kRecent] = {};
  Page* recent_[kRecent] = {};
  std::unordered_map<uint64_t, std::vector<Release>> releases_;
  std::vector<Acquired> acquired_, pending_;  // of the block that runs
  Release fences_[kMostThreads] = {};
  uint32_t warp_barriers_[kMostThreads / kWarp] = {};
  uint32_t block_barrier_ = 0;
  uint32_t now_ = 0;  // counts fences, barriers and atomics
  uint32_t run_ = 0;
  uint32_t first_run_ = 0;  // of this launch
};

}  // namespace simt
