#include "races.h"

#include <algorithm>
#include <cstring>

#include "simt/runtime.h"

namespace simt {
namespace {

// What is watched: empty unless a kernel runs.
uintptr_t watched_begin = 0;
size_t watched_bytes = 0;

int warp_of(int thread) { return thread / warpSize; }
uint32_t bit(int index) { return 1u << index; }

}  // namespace

void Races::begin_launch(const char* segment, size_t bytes) {
  begin_ = watched_begin = reinterpret_cast<uintptr_t>(segment);
  watched_bytes = bytes;
  if (cells_.size() * kGranule < bytes) cells_.resize((bytes + kGranule - 1) / kGranule);
  loaded_.clear();
}

void Races::end_launch() { watched_bytes = 0; }

Race Races::access(int thread, const Access& access) {
  if (access.copy == Access::kBegins) {  // what was loaded before is compared before it changes
    if (const Race race = end_turn(thread)) return race;
  }
  for (size_t done = 0; !access.is_store && done < access.bytes; done += kMostBytes) {
    Loaded loaded{access, {}};
    loaded.access.address += done;
    loaded.access.bytes = std::min(kMostBytes, access.bytes - done);
    std::memcpy(loaded.value, reinterpret_cast<const void*>(loaded.access.address), loaded.access.bytes);
    loaded_.push_back(loaded);
  }
  const size_t first = (access.address - begin_) / kGranule;
  const size_t last = (access.address - begin_ + access.bytes - 1) / kGranule;
  for (size_t i = first; i <= last && i < cells_.size(); ++i) {
    if (const Race race = touch(cells_[i], thread, access)) return race;
  }
  return {};
}

Race Races::end_turn(int thread) {
  for (size_t i = 0; i < loaded_.size(); ++i) {
    Access store = loaded_[i].access;
    if (std::memcmp(reinterpret_cast<const void*>(store.address), loaded_[i].value, store.bytes) == 0) continue;
    store.is_store = true;
    if (const Race race = access(thread, store)) return race;
  }
  loaded_.clear();
  return {};
}

Race Races::touch(Cell& cell, int thread, const Access& access) const {
  const int warp = warp_of(thread), lane = thread % warpSize;
  const uint64_t epoch = warp_epochs_[warp];
  if (cell.block_epoch != block_epoch_) {
    const uint64_t copied_in = cell.copied_in;
    cell = Cell{};
    cell.copied_in = copied_in;
    cell.block_epoch = block_epoch_;
    cell.writer = cell.last_reader = -1;
  }
  if (access.copy == Access::kEnds) cell.copied_in = 0;
  if (cell.copied_in == block_) return {access, warp_of(cell.writer), true, cell.write_pc, true};
  if (access.copy == Access::kBegins) cell.copied_in = block_;
  if (cell.writer >= 0 && cell.writer != thread && (warp_of(cell.writer) != warp || cell.write_epoch == epoch)) {
    return {access, warp_of(cell.writer), true, cell.write_pc};
  }
  const uint32_t lanes = cell.last_reader == warp && cell.read_epoch == epoch ? cell.reading_lanes : 0;
  if (!access.is_store) {
    cell.reading_warps |= bit(warp);
    cell.reading_lanes = lanes | bit(lane);
    cell.last_reader = static_cast<int16_t>(warp);
    cell.read_epoch = epoch;
    cell.read_pc = access.pc;
    return {};
  }
  const uint32_t other_warps = cell.reading_warps & ~bit(warp);
  if (other_warps != 0 || (lanes & ~bit(lane)) != 0) {
    return {access, other_warps != 0 ? __builtin_ctz(other_warps) : warp, false, cell.read_pc};
  }
  cell.writer = static_cast<int16_t>(thread);
  cell.write_epoch = epoch;
  cell.write_pc = access.pc;
  return {};
}

// Defined in runtime.cpp, for the thread that runs: of shared memory, and of what is neither that nor its stack.
void watch(const Access& access);
void watch_global(const Access& access);

Unwatched unwatched;

}  // namespace simt

// The linker's --wrap puts these in the place of AddressSanitizer's, which they go on to.
#define SIMT_CHECK(function, bytes, is_store, parameters, ...)                                             \
  extern "C" void __real___asan_##function parameters;                                                     \
  extern "C" __attribute__((visibility("hidden"))) void __wrap___asan_##function parameters {              \
    const simt::Access access{address, static_cast<size_t>(bytes), is_store, __builtin_return_address(0)}; \
    if (address - simt::watched_begin < simt::watched_bytes) {                                             \
      simt::watch(access);                                                                                 \
    } else if (simt::watched_bytes != 0 && address - simt::unwatched.begin >= simt::unwatched.size) {      \
      simt::watch_global(access);                                                                          \
    }                                                                                                      \
    __real___asan_##function(__VA_ARGS__);                                                                 \
  }
#define SIMT_CHECKS(bytes)                                            \
  SIMT_CHECK(load##bytes, bytes, false, (uintptr_t address), address) \
  SIMT_CHECK(store##bytes, bytes, true, (uintptr_t address), address)
SIMT_CHECKS(1)
SIMT_CHECKS(2)
SIMT_CHECKS(4)
SIMT_CHECKS(8)
SIMT_CHECKS(16)
SIMT_CHECK(loadN, bytes, false, (uintptr_t address, size_t bytes), address, bytes)
SIMT_CHECK(storeN, bytes, true, (uintptr_t address, size_t bytes), address, bytes)
