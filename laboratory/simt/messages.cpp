#include "messages.h"

#include <sanitizer/common_interface_defs.h>

#include <cstdio>
#include <cstring>

#include "simt/matrices.h"

namespace simt {

const char* name_of(Collective kind) {
  if (kind == kMatrices) return "mma or movmatrix";
  switch (kind) {
    case Collective::kShuffle: return "__shfl_sync";
    case Collective::kShuffleUp: return "__shfl_up_sync";
    case Collective::kShuffleDown: return "__shfl_down_sync";
    case Collective::kShuffleXor: return "__shfl_xor_sync";
    case Collective::kBallot: return "__ballot_sync";
    case Collective::kAll: return "__all_sync";
    case Collective::kAny: return "__any_sync";
    case Collective::kReduceMax: return "__reduce_max_sync";
    case Collective::kSyncWarp: return "__syncwarp";
    case Collective::kSyncThreads: return "__syncthreads";
    case Collective::kSyncThreadsCount: return "__syncthreads_count, _or or _and";
  }
  return "?";
}

std::string hex(uint32_t mask) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08x", mask);
  return text;
}

std::string list(uint32_t lanes) {
  std::string text;
  for (int lane = 0; lane < warpSize; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    int last = lane;
    while (last + 1 < warpSize && (lanes >> (last + 1) & 1) != 0) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(lane);
    if (last > lane) text += "-" + std::to_string(last);
    lane = last;
  }
  return (__builtin_popcount(lanes) == 1 ? "lane " : "lanes ") + text;
}

std::string to_string(const uint3& index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

std::string to_string(const Site& site) {
  const char* slash = std::strrchr(site.file, '/');
  return std::string(slash != nullptr ? slash + 1 : site.file) + ":" + std::to_string(site.line);
}

std::string symbolize(const void* address, const char* format) {
  char text[1024] = "";
  __sanitizer_symbolize_pc(const_cast<void*>(address), format, text, sizeof(text));
  return text;
}

namespace {

std::string access_of(int thread, bool is_store, const void* pc) {
  const std::string line = symbolize(pc, "%s:%l");
  return "warp " + std::to_string(thread / warpSize) + (is_store ? " writes at " : " reads at ") +
         line.substr(line.rfind('/') + 1);
}

}  // namespace

std::string describe(const Race& race, int thread) {
  if (race.other_is_copy) {
    return access_of(thread, race.access.is_store, race.access.pc) + " the target of a copy that is not waited for";
  }
  return "a race over shared memory: " + access_of(thread, race.access.is_store, race.access.pc) + ", " +
         access_of(race.other_warp * warpSize, race.other_is_store, race.other_pc) + ", without a barrier between";
}

std::string describe(const GlobalRace& race, int thread) {
  return "a race over global memory: " + access_of(thread, race.access.is_store, race.access.pc) + ", " +
         access_of(race.other_thread, race.other_is_store, race.other_pc) +
         (race.other_is_this_block ? "" : " in another block") + ", and nothing orders them";
}

}  // namespace simt
