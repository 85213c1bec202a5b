// The scheduler of lanes, and collectives.
#include "simt/runtime.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "copies.h"
#include "device.h"
#include "fiber.h"
#include "global_races.h"
#include "messages.h"
#include "races.h"
#include "random.h"
#include "shared_memory.h"
#include "simt/launch.h"
#include "simt/matrices.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt {
namespace {

bool is_in_atomic = false;
constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / warpSize;

// ---- the block that runs -----------------------------------------------------------------------

struct Lane {
  Fiber fiber;
  Request request;
  uint64_t result;
};

// Lanes as bits.
struct Warp {
  uint32_t present = 0;
  uint32_t runnable = 0;
  uint32_t waiting = 0;     // at a collective of the warp
  uint32_t at_barrier = 0;  // at a barrier of the block
  uint32_t exited = 0;
};

class Machine {
 public:
  cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, const Body& body);
  uint64_t collective(const Request& request);
  void watch(const Access& access) { report(races_.access(current_, access)); }
  void watch_global(const Access& access, bool is_atomic) { report(global_races_.access(current_, access, is_atomic)); }
  void fence() { global_races_.fence(current_); }
  bool is_running() const { return is_running_; }
  int current_lane() const { return current_ % warpSize; }
  int current_thread() const { return current_; }
  [[noreturn]] void fail_lane(const std::string& message);

 private:
  void run_grid();
  void run_block();
  void start_block();
  static void lane_main();
  [[noreturn]] void run_lane();

  int pick();
  void go_on();
  void resume(int thread) {
    current_ = thread;
    threadIdx = thread_indices_[static_cast<size_t>(thread)];
    unwatched = stacks_[thread].extent();
  }
  void make_runnable(int warp, uint32_t lanes) {
    warps_[warp].runnable |= lanes;
    ready_ |= 1u << warp;
  }
  void stop(int warp, uint32_t lane) {
    warps_[warp].runnable &= ~lane;
    if (warps_[warp].runnable == 0) ready_ &= ~(1u << warp);
  }
  void leave();
  template <class AnyRace>
  void report(const AnyRace& race) {
    if (race) fail_lane(describe(race, current_));
  }
  void complete_barrier();
  void complete(int warp, uint32_t mask);
  void check_same(int warp, uint32_t mask);
  void complete_shuffle(int warp, uint32_t mask);
  void complete_matrices(int warp);

  std::string place() const;
  std::string describe_warp(int warp) const;
  std::string deadlock() const;

  Lane lanes_[kMaxThreads];
  Warp warps_[kMaxWarps];
  Stack stacks_[kMaxThreads];
  std::vector<uint3> thread_indices_;
  Fiber main_;
  Fiber* unknown_main_ = nullptr;  // main_, until the bounds of its stack are known
  Random random_;
  Body body_{};
  SharedMemory* shared_ = nullptr;
  Races races_;
  GlobalRaces global_races_;
  const void* kernel_ = nullptr;
  int threads_ = 0;
  int num_warps_ = 0;
  int live_ = 0;        // lanes that have not exited
  int arrived_ = 0;     // at the block's barrier
  uint32_t ready_ = 0;  // warps with runnable lanes
  int current_ = 0;
  int64_t switches_ = 0;
  bool is_running_ = false;
  std::string error_;
};

Machine machine;

// ---- messages ----------------------------------------------------------------------------------

std::string Machine::place() const {
  // It looks one byte back, as for a return address.
  return symbolize(static_cast<const char*>(kernel_) + 1, "%f") + ", block " + to_string(blockIdx) + " of " +
         to_string({gridDim.x, gridDim.y, gridDim.z});
}

std::string Machine::describe_warp(int warp) const {
  const Warp& state = warps_[warp];
  std::map<std::string, uint32_t> groups;
  for (int lane = 0; lane < warpSize; ++lane) {
    const uint32_t bit = 1u << lane;
    const Request& request = lanes_[warp * warpSize + lane].request;
    if ((state.waiting & bit) != 0) {
      groups["at " + std::string(name_of(request.kind)) + " of " + hex(request.mask) + " in " +
             to_string(request.site)] |= bit;
    } else if ((state.at_barrier & bit) != 0) {
      groups["at " + std::string(name_of(request.kind)) + " in " + to_string(request.site)] |= bit;
    } else if ((state.exited & bit) != 0) {
      groups["exited"] |= bit;
    }
  }
  std::string text;
  for (const auto& [what, lanes] : groups) text += (text.empty() ? "" : "; ") + list(lanes) + " " + what;
  return text.empty() ? text : "\n  warp " + std::to_string(warp) + ": " + text;
}

std::string Machine::deadlock() const {
  std::string text = "lanes wait for others that will never come, in " + place();
  int described = 0;
  for (int warp = 0; warp < num_warps_ && described < 4; ++warp) {
    if (warps_[warp].exited == warps_[warp].present && arrived_ == 0) continue;
    text += describe_warp(warp);
    ++described;
  }
  return text;
}

// ---- scheduling --------------------------------------------------------------------------------

// The next lane to run; -1 if none can. Mostly of the same warp, so that warps are at different places of the kernel.
int Machine::pick() {
  if (ready_ == 0) return -1;
  const uint32_t random = random_.next();
  int warp = current_ / warpSize;
  if ((ready_ >> warp & 1) == 0 || random % 16 == 0) warp = random_bit(ready_, random >> 8);
  return warp * warpSize + random_bit(warps_[warp].runnable, random >> 16);
}

// Suspends the lane that runs, unless it is drawn again itself.
void Machine::go_on() {
  const int next = pick();
  const int self = current_;
  if (next == self) return;
  ++switches_;
  if (next >= 0) {
    resume(next);
    lanes_[self].fiber.switch_to(lanes_[next].fiber);
  } else {
    lanes_[self].fiber.switch_to(main_);
  }
  // Whoever switched here has called resume(self).
}

void Machine::lane_main() { machine.run_lane(); }

void Machine::run_lane() {
  Fiber::entered(std::exchange(unknown_main_, nullptr));
  body_.run(body_.context);
  report(races_.end_turn(current_));
  if (settings.races != 0 && copies.has_any(current_)) fail_lane("a thread ends before it has waited for its copies");
  const int warp = current_ / warpSize;
  const uint32_t bit = 1u << current_lane();
  stop(warp, bit);
  warps_[warp].exited |= bit;
  --live_;
  leave();
  std::abort();
}

// The lane that runs will never run again.
void Machine::leave() {
  const int self = current_;
  const int next = error_.empty() ? pick() : -1;
  ++switches_;
  if (next >= 0) resume(next);
  lanes_[self].fiber.finish(next >= 0 ? lanes_[next].fiber : main_);
}

void Machine::fail_lane(const std::string& message) {
  error_ = message + ", in " + place() + ", thread " + to_string(threadIdx) + describe_warp(current_ / warpSize);
  leave();
  std::abort();
}

void Machine::start_block() {
  ready_ = 0;  // a kernel that failed left lanes behind
  for (int warp = 0; warp < num_warps_; ++warp) {
    const int lanes = std::min(threads_ - warp * warpSize, warpSize);
    warps_[warp] = Warp{};
    warps_[warp].present = lanes == warpSize ? 0xffffffffu : (1u << lanes) - 1;
    make_runnable(warp, warps_[warp].present);
  }
  for (int thread = 0; thread < threads_; ++thread) lanes_[thread].fiber.prepare(stacks_[thread], &Machine::lane_main);
  live_ = threads_;
  arrived_ = 0;
  shared_->begin_block();
  copies.begin_block(shared_->begin(), shared_->bytes());
  races_.begin_block();
  global_races_.begin_block();
}

void Machine::run_block() {
  start_block();
  unknown_main_ = &main_;
  current_ = static_cast<int>(random_.below(static_cast<uint64_t>(num_warps_))) * warpSize;
  const int first = pick();
  resume(first);
  main_.switch_to(lanes_[first].fiber);
  if (error_.empty() && live_ > 0) error_ = deadlock();
}

void Machine::run_grid() {
  std::vector<uint32_t> order(static_cast<size_t>(gridDim.x) * gridDim.y * gridDim.z);
  std::iota(order.begin(), order.end(), 0u);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
  for (const uint32_t block : order) {
    blockIdx = {block % gridDim.x, block / gridDim.x % gridDim.y, block / gridDim.x / gridDim.y};
    run_block();
    if (!error_.empty()) return;
  }
  settings.blocks += static_cast<int64_t>(order.size());
}

// Whether on_launch ran the kernel.
bool is_taken_over(const cudaLaunchConfig_t& config, const void* kernel, const Body& body) {
  static std::map<const void*, std::string> names;
  std::string& name = names[kernel];
  if (name.empty()) name = symbolize(static_cast<const char*>(kernel) + 1, "%f");
  // The context is the kernel's address and its parameters, of which kernels have one (launch.h).
  const void* const parameters = static_cast<const char*>(body.context) + sizeof(kernel);
  const dim3 grid = config.gridDim, block = config.blockDim;
  const Launch launch{
      name.c_str(), parameters, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, config.dynamicSmemBytes};
  return on_launch(&launch) != 0;
}

cudaError_t Machine::launch(const cudaLaunchConfig_t& config, const void* kernel, const Body& body) {
  const uint64_t threads = uint64_t{config.blockDim.x} * config.blockDim.y * config.blockDim.z;
  const dim3 grid = config.gridDim;
  if (threads == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaErrorInvalidConfiguration;
  if (threads > kMaxThreads || grid.x > 0x7fffffffu || grid.y > 0xffffu || grid.z > 0xffffu) {
    return cudaErrorInvalidConfiguration;
  }
  if (config.dynamicSmemBytes > dynamic_shared_limit(kernel)) return cudaErrorInvalidValue;
  if (on_launch != nullptr && is_taken_over(config, kernel, body)) return cudaSuccess;

  launched_kernels().insert(kernel);
  threads_ = static_cast<int>(threads);
  num_warps_ = (threads_ + warpSize - 1) / warpSize;
  kernel_ = kernel;
  body_ = body;
  blockDim = config.blockDim;
  gridDim = config.gridDim;
  thread_indices_.clear();
  for (unsigned int i = 0; i < threads; ++i) {
    thread_indices_.push_back({i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y});
    stacks_[i].allocate(static_cast<int>(i));
  }
  random_.seed(static_cast<uint64_t>(settings.seed) * 1000003u + static_cast<uint64_t>(settings.launches++));

  switches_ = 0;
  is_in_atomic = false;
  is_running_ = true;
  {
    SharedMemory shared(config.dynamicSmemBytes);
    shared_ = &shared;
    if (settings.races != 0) races_.begin_launch(shared.begin(), shared.bytes());
    global_races_.begin_launch();
    run_grid();
    races_.end_launch();
  }
  is_running_ = false;
  settings.switches += switches_;
  if (error_.empty()) return cudaSuccess;
  for (int thread = 0; thread < threads_; ++thread) stacks_[thread].unpoison();
  throw std::runtime_error("simt: " + std::exchange(error_, {}));
}

// ---- collectives -------------------------------------------------------------------------------

bool is_barrier_of_block(Collective kind) {
  return kind == Collective::kSyncThreads || kind == Collective::kSyncThreadsCount;
}

uint64_t Machine::collective(const Request& request) {
  const int warp = current_ / warpSize;
  const uint32_t bit = 1u << current_lane();
  Lane& lane = lanes_[current_];
  Warp& state = warps_[warp];
  report(races_.end_turn(current_));
  lane.request = request;
  stop(warp, bit);
  if (is_barrier_of_block(request.kind)) {
    state.at_barrier |= bit;
    if (++arrived_ == threads_) complete_barrier();
  } else {
    if ((request.mask & bit) == 0)
      fail_lane(std::string(name_of(request.kind)) + " by a lane that its mask " + hex(request.mask) +
                " does not name");
    state.waiting |= bit;
    if ((state.waiting & request.mask) == request.mask) complete(warp, request.mask);
  }
  go_on();
  return lane.result;
}

// All threads of the block have arrived: at the same barrier, or it is none.
void Machine::complete_barrier() {
  const Request& first = lanes_[0].request;
  uint64_t count = 0;
  for (int thread = 0; thread < threads_; ++thread) {
    const Request& request = lanes_[thread].request;
    if (request.kind != first.kind || request.site.line != first.site.line) {
      fail_lane("threads of a block meet at different barriers: at " + to_string(first.site) + " and at " +
                to_string(request.site));
    }
    count += request.value;
  }
  for (int thread = 0; thread < threads_; ++thread) lanes_[thread].result = count;
  for (int warp = 0; warp < num_warps_; ++warp) {
    make_runnable(warp, std::exchange(warps_[warp].at_barrier, 0));
  }
  arrived_ = 0;
  races_.sync_block();
  global_races_.sync_block();
}

void Machine::check_same(int warp, uint32_t mask) {
  const Lane* const lanes = lanes_ + warp * warpSize;
  const Request& first = lanes[__builtin_ctz(mask)].request;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const Request& request = lanes[__builtin_ctz(left)].request;
    if (request.kind != first.kind || request.mask != mask || request.bytes != first.bytes ||
        request.width != first.width) {
      fail_lane("lanes of a warp meet at different collectives");
    }
  }
}

// Of lanes that `mask` names, which have arrived at the same vote.
uint64_t vote(const Lane* lanes, uint32_t mask) {
  uint32_t votes = 0;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    votes |= static_cast<uint32_t>(lanes[lane].request.value) << lane;
  }
  const Collective kind = lanes[__builtin_ctz(mask)].request.kind;
  return kind == Collective::kBallot ? votes : kind == Collective::kAll ? votes == mask : votes != 0;
}

uint64_t maximum(const Lane* lanes, uint32_t mask) {
  int32_t found = INT32_MIN;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    found = std::max(found, static_cast<int32_t>(lanes[__builtin_ctz(left)].request.value));
  }
  return static_cast<uint32_t>(found);
}

// All lanes of `mask` have arrived: gives each its result.
void Machine::complete(int warp, uint32_t mask) {
  check_same(warp, mask);
  Lane* const lanes = lanes_ + warp * warpSize;
  const Collective kind = lanes[__builtin_ctz(mask)].request.kind;
  if (kind <= Collective::kShuffleXor) {
    complete_shuffle(warp, mask);
  } else if (kind == kMatrices) {
    complete_matrices(warp);
  } else {
    const uint64_t result = kind == Collective::kReduceMax ? maximum(lanes, mask) : vote(lanes, mask);
    for (uint32_t left = mask; left != 0; left &= left - 1) lanes[__builtin_ctz(left)].result = result;
    if (kind == Collective::kSyncWarp) {
      races_.sync_warp(warp);
      global_races_.sync_warp(warp);
    }
  }
  warps_[warp].waiting &= ~mask;
  make_runnable(warp, mask);
}

// The lane that `lane` reads from, or itself where CUDA says so.
int source_of(int lane, const Request& request) {
  const int width = request.width, operand = static_cast<int>(request.operand);
  const int first = lane & ~(width - 1), last = first + width - 1;
  switch (request.kind) {
    case Collective::kShuffle: return first | (operand & (width - 1));
    case Collective::kShuffleUp: return request.operand > static_cast<uint32_t>(lane - first) ? lane : lane - operand;
    case Collective::kShuffleDown: return request.operand > static_cast<uint32_t>(last - lane) ? lane : lane + operand;
    default: return (lane ^ operand) > last ? lane : lane ^ operand;
  }
}

void Machine::complete_shuffle(int warp, uint32_t mask) {
  Lane* const lanes = lanes_ + warp * warpSize;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const int source = source_of(lane, lanes[lane].request);
    if (source < 0 || source >= warpSize || (mask >> source & 1) == 0) {
      fail_lane("lane " + std::to_string(lane) + " shuffles from lane " + std::to_string(source) + ", which the mask " +
                hex(mask) + " does not name, in " + to_string(lanes[lane].request.site));
    }
    lanes[lane].result = lanes[source].request.value;
  }
}

void Machine::complete_matrices(int warp) {
  void* operands[warpSize];
  WarpFunction function = nullptr;
  for (int lane = 0; lane < warpSize; ++lane) {
    const auto* call = reinterpret_cast<const WarpCall*>(lanes_[warp * warpSize + lane].request.value);
    if (function != nullptr && function != call->function) fail_lane("lanes of a warp meet at different collectives");
    function = call->function;
    operands[lane] = call->lane;
  }
  function(operands);
}

bool is_off(Collective kind) {
  if (kind <= Collective::kShuffleXor) return settings.shuffles == 0;
  if (kind == Collective::kSyncWarp) return settings.warp_barriers == 0;
  return kind == Collective::kSyncThreads && settings.block_barriers == 0;
}

}  // namespace

uint64_t collective(const Request& request) {
  if (!machine.is_running()) throw std::logic_error("a collective outside of a kernel");
  return is_off(request.kind) ? request.value : machine.collective(request);
}

void watch(const Access& access) { machine.watch(access); }

void watch_global(const Access& access) {
  if (!is_in_atomic) machine.watch_global(access, false);
}
void begin_atomic(const void* address, unsigned bytes) {
  is_in_atomic = true;
  const Access access{reinterpret_cast<uintptr_t>(address), bytes, true, __builtin_return_address(0)};
  if (machine.is_running() && settings.races != 0) machine.watch_global(access, true);
}
void end_atomic() { is_in_atomic = false; }
void fence() {
  if (settings.fences != 0) machine.fence();
}

int current_lane() { return machine.current_lane(); }
int current_thread() { return machine.current_thread(); }

void fail(const char* message, Site site) {
  const std::string text = std::string(message) + " at " + to_string(site);
  if (!machine.is_running()) throw std::runtime_error("simt: " + text);
  machine.fail_lane(text);
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, const Body& body) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> guard(mutex);
  return machine.launch(config, kernel, body);
}

}  // namespace simt
