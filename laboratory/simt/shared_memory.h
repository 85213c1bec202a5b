// Where __shared__ variables are: they are thread_local, so in the thread's block of the library's TLS segment, in
// which nothing else is (build.py sees to that).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace simt {

constexpr size_t kStaticSharedBytes = 48 * 1024;  // what a launch may use without asking
constexpr size_t kMaxSharedBytes = 227 * 1024;
// A large negative integer, an implausible float; 0xcdcd is -23.2 as fp16, -4e8 as bf16.
constexpr int kGarbage = 0xcd;

class SharedMemory {
 public:
  // For a launch with this much dynamic shared memory, on this thread. What is beyond may not be touched.
  explicit SharedMemory(size_t dynamic_bytes);
  ~SharedMemory();
  // Fills it with garbage.
  void begin_block();
  // Where it is: static and dynamic.
  const char* begin() const { return segment_; }
  size_t bytes() const { return segment_bytes_; }

 private:
  void find_used();
  size_t piece_bytes(size_t piece) const;

  char* dynamic_;
  size_t dynamic_bytes_;
  // The variables of all kernels. Those that this kernel uses are found out: pieces that blocks have changed.
  char* segment_;
  size_t segment_bytes_;
  std::vector<bool> used_;
  uint64_t blocks_ = 0;
};

}  // namespace simt
