// The copies to shared memory that threads of the block have under way: simt/copies.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "races.h"
#include "simt/runtime.h"

namespace simt {

class Copies {
 public:
  // Of a block whose shared memory is there.
  void begin_block(const char* segment, size_t bytes);
  void begin(int thread, uint4* target, const uint4& value, const void* pc, Site site);
  void end_group(int thread) { ++threads_[static_cast<size_t>(thread)].groups; }
  // Ends all groups of the thread but the last `groups`.
  void wait(int thread, int groups);
  bool has_any(int thread) const { return !threads_[static_cast<size_t>(thread)].copies.empty(); }

 private:
  static constexpr size_t kMostThreads = 1024;

  struct Copy {
    uint4* target;
    uint4 value;
    Access access;
    int64_t group;
  };
  struct Thread {
    std::deque<Copy> copies;
    int64_t groups = 0;  // that have ended
  };

  const char* segment_ = nullptr;
  size_t segment_bytes_ = 0;
  std::vector<Thread> threads_{kMostThreads};
};
extern Copies copies;

// Defined in runtime.cpp: the thread that runs, and the look for races.
int current_thread();
void watch(const Access& access);

}  // namespace simt
