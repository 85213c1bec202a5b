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

void Copies::begin(int thread, uint4* target, const uint4& value, const void* pc, Site site) {
  const auto* const first = reinterpret_cast<const char*>(target);
  const auto address = reinterpret_cast<uintptr_t>(target);
  if (first < segment_ || first + sizeof(value) > segment_ + segment_bytes_) {
    fail("a copy to what is not shared memory", site);
  }
  if (address % sizeof(value) != 0) fail("a copy to a misaligned address", site);
  Thread& of = threads_[static_cast<size_t>(thread)];
  const Access access{address, sizeof(value), true, pc, Access::kBegins};
  if (settings.races != 0) watch(access);
  std::memset(target, kGarbage, sizeof(value));
  of.copies.push_back({target, value, access, of.groups});
}

void Copies::wait(int thread, int groups) {
  Thread& of = threads_[static_cast<size_t>(thread)];
  for (; !of.copies.empty() && of.copies.front().group < of.groups - groups; of.copies.pop_front()) {
    Copy& copy = of.copies.front();
    *copy.target = copy.value;
    copy.access.copy = Access::kEnds;
    if (settings.races != 0) watch(copy.access);
  }
}

void begin_copy(void* target, const uint4& value, Site site) {
  copies.begin(current_thread(), static_cast<uint4*>(target), value, __builtin_return_address(0), site);
}
void end_group_of_copies() { copies.end_group(current_thread()); }
void wait_for_copies(int groups) {
  if (settings.copies != 0) copies.wait(current_thread(), groups);
}

}  // namespace simt
