#include "copies.h"

#include <cstring>

#include "device.h"
#include "shared_memory.h"
#include "simt/copies.h"

namespace simt {

Copies copies;

void Copies::begin_block(const char* segment, size_t bytes) {
  segment_ = segment;
  segment_bytes_ = bytes;
  for (Thread& thread : threads_) {
    thread.groups = 0;
    thread.copies.clear();  // of a kernel that failed
  }
}

void Copies::begin(int thread, char* target, const void* value, unsigned bytes, const void* pc, Site site) {
  if (target < segment_ || target + bytes > segment_ + segment_bytes_)
    fail("a copy to what is not shared memory", site);
  if (reinterpret_cast<uintptr_t>(target) % bytes != 0) fail("a copy to a misaligned address", site);
  Thread& of = threads_[static_cast<size_t>(thread)];
  const Access access{reinterpret_cast<uintptr_t>(target), bytes, true, pc, Access::kBegins};
  Copy copy{target, {}, access, of.groups};
  std::memcpy(copy.value, value, bytes);
  if (settings.races != 0) watch(access);
  std::memset(target, kGarbage, bytes);
  of.copies.push_back(copy);
}

void Copies::wait(int thread, int groups) {
  Thread& of = threads_[static_cast<size_t>(thread)];
  for (; !of.copies.empty() && of.copies.front().group < of.groups - groups; of.copies.pop_front()) {
    Copy& copy = of.copies.front();
    std::memcpy(copy.target, copy.value, copy.access.bytes);
    copy.access.copy = Access::kEnds;
    if (settings.races != 0) watch(copy.access);
  }
}

void begin_copy(void* target, const void* value, unsigned bytes, Site site) {
  copies.begin(current_thread(), static_cast<char*>(target), value, bytes, __builtin_return_address(0), site);
}
void end_group_of_copies() { copies.end_group(current_thread()); }
void wait_for_copies(int groups) {
  if (settings.copies != 0) copies.wait(current_thread(), groups);
}

}  // namespace simt
