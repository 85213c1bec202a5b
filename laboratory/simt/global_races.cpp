#include "global_races.h"

#include <algorithm>

namespace simt {

void GlobalRaces::begin_launch() {
  if (pages_.size() > kMostPages) {
    pages_.clear();
    std::fill(std::begin(recent_), std::end(recent_), nullptr);
  }
  releases_.clear();
  first_run_ = run_ + 1;
  now_ = 0;
}

void GlobalRaces::begin_block() {
  ++run_;
  acquired_.clear();
  pending_.clear();
  std::fill(std::begin(fences_), std::end(fences_), Release{});
  std::fill(std::begin(warp_barriers_), std::end(warp_barriers_), 0u);
  block_barrier_ = 0;
}

void GlobalRaces::fence(int thread) {
  ++now_;
  fences_[thread] = {run_, static_cast<uint16_t>(thread), now_, warp_barriers_[thread / kWarp], block_barrier_};
  const auto is_other = [thread](const Acquired& pending) { return pending.thread != thread; };
  const auto own = std::stable_partition(pending_.begin(), pending_.end(), is_other);
  for (auto pending = own; pending != pending_.end(); ++pending) {
    acquired_.push_back({pending->word, pending->count, pending->thread, now_});
  }
  pending_.erase(own, pending_.end());
}

void GlobalRaces::synchronize(int thread, uint64_t word) {
  ++now_;
  std::vector<Release>& releases = releases_[word];
  if (!releases.empty()) pending_.push_back({word, releases.size(), static_cast<uint16_t>(thread), now_});
  if (fences_[thread].run == run_) releases.push_back(fences_[thread]);
}

GlobalRaces::Page& GlobalRaces::page_of(uint64_t number) {
  const size_t place = number % kRecent;
  if (recent_[place] == nullptr || recent_numbers_[place] != number) {
    Page& page = pages_[number];
    if (page.empty()) page.resize((size_t{1} << kLog2Page) / kGranule);
    recent_[place] = &page;
    recent_numbers_[place] = number;
  }
  return *recent_[place];
}

GlobalRace GlobalRaces::access(int thread, const Access& access, bool is_atomic) {
  if (access.bytes < kGranule) return {};
  const Event event{run_, now_, access.pc, static_cast<uint16_t>(thread), is_atomic};
  for (size_t done = 0; done < access.bytes; done += kGranule) {
    const uint64_t granule = (access.address + done) / kGranule;
    Cell& cell = page_of(granule * kGranule >> kLog2Page)[granule % ((size_t{1} << kLog2Page) / kGranule)];
    const auto race_with = [&](const Event& other, bool is_store) {
      const bool is_this_block = other.run == run_;
      return GlobalRace{access, other.thread, is_this_block, is_store, other.pc};
    };
    const bool may_meet =
        (is_atomic && cell.write.is_atomic) || (access.is_store && is_by_same_store(cell.write, event));
    if (!may_meet && !is_ordered(cell.write, thread)) return race_with(cell.write, true);
    if (!access.is_store) {
      cell.read = event;
    } else {
      if (!is_ordered(cell.read, thread)) return race_with(cell.read, false);
      cell.write = event;
      cell.read = {};
    }
  }
  if (is_atomic) synchronize(thread, access.address);
  return {};
}

// Whether what happened in a thread of this block at `time` happened before what `thread` does now.
bool GlobalRaces::is_visible(uint32_t time, int from, int thread) const {
  return from == thread || (from / kWarp == thread / kWarp && warp_barriers_[thread / kWarp] > time) ||
         block_barrier_ > time;
}

bool GlobalRaces::is_by_same_store(const Event& one, const Event& other) {
  return one.run == other.run && one.thread / kWarp == other.thread / kWarp && one.pc == other.pc;
}

bool GlobalRaces::is_ordered(const Event& event, int thread) const {
  if (event.run < first_run_) return true;  // of an earlier launch
  if (event.run == run_ && is_visible(event.time, event.thread, thread)) return true;
  for (const Acquired& acquired : acquired_) {
    if (!is_visible(acquired.time, acquired.thread, thread)) continue;
    const std::vector<Release>& releases = releases_.at(acquired.word);
    for (size_t i = 0; i < acquired.count; ++i) {
      const Release& release = releases[i];
      if (release.run != event.run) continue;
      if ((release.thread == event.thread && event.time < release.own) ||
          (release.thread / kWarp == event.thread / kWarp && event.time < release.of_warp) ||
          event.time < release.of_block) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace simt
